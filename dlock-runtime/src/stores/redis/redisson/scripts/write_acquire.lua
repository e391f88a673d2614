-- Takes a read/write lock to write, or extends the lease of who writes.
--
--   KEYS[1] lock
--   ARGV[1] owner, with ":write"   ARGV[2] ttl in ms
--
-- Returns OK, or what is held.

-- Redisson takes no notice of the holder of an RLock, who has no mode. It is kept out here.
if redis.call('EXISTS', lock) == 1 and redis.call('HEXISTS', lock, ARGV[1]) == 0 then
  return held()
end
redis.call('HSET', lock, 'mode', 'write', ARGV[1], 1)
redis.call('PEXPIRE', lock, ARGV[2])
return redis.status_reply('OK')
