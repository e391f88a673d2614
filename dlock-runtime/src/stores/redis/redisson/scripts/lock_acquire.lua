-- Takes a lock if it is free, or extends the lease of who has it.
--
--   KEYS[1] lock    KEYS[2] its token, if it is fenced
--   ARGV[1] owner   ARGV[2] ttl in ms   ARGV[3] how many token numbers a grant reserves
--
-- Returns the last of the reserved token numbers, or OK without any; or what is held.

if redis.call('EXISTS', lock) == 1 and redis.call('HEXISTS', lock, ARGV[1]) == 0 then
  return held()
end
-- Before anything is written: if the token is not a number, this fails, and nothing was
-- done.
local last = KEYS[2] and redis.call('INCRBY', KEYS[2], ARGV[3])
redis.call('HSET', lock, ARGV[1], 1)
redis.call('PEXPIRE', lock, ARGV[2])
return last or redis.status_reply('OK')
