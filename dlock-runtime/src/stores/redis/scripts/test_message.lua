-- A message to nobody in particular, to see whether messages may be sent.
--
--   KEYS[1] a lock   ARGV[1] a process

local heard = IN_SLOT and redis.pcall('SPUBLISH', WAKE .. of_lock .. ARGV[1], '')
-- Where channels belong to slots, those who wait listen to no others.
if type(heard) == 'number' or (heard and not string.find(heard.err, 'nknown')) then
  return heard
end
return tell(ARGV[1], '')
