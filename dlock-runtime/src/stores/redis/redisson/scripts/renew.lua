-- Extends the lease of who has the lock alone.
--
--   KEYS[1] lock
--   ARGV[1] owner   ARGV[2] ttl in ms
--
-- Returns 1 if it was extended, 0 if it has ended.

if redis.call('HEXISTS', lock, ARGV[1]) == 0 then
  return 0
end
return redis.call('PEXPIRE', lock, ARGV[2])
