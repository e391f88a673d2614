-- A message to nobody in particular, to see whether messages may be sent.
--
--   KEYS[1] a lock   ARGV[1] a process

return tell(ARGV[1], '')
