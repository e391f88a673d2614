-- A message to nobody in particular, to see whether messages may be sent.
--
--   ARGV[1] the channel of a lock
--
-- It is told of no key: the user may have rights for those of some locks only.

return publish(ARGV[1], '0')
