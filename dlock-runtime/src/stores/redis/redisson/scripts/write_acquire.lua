-- Takes a read/write lock to write, or extends the lease of who writes.
--
--   KEYS[1] lock
--   ARGV[1] owner, with ":write"   ARGV[2] ttl in ms
--
-- Returns OK, or what is held.

-- Redisson would let a writer in beside the holder of an RLock, which has no mode. Here the
-- writer has to wait.
if redis.call('EXISTS', lock) == 1 and redis.call('HEXISTS', lock, ARGV[1]) == 0 then
  return held()
end
redis.call('HSET', lock, 'mode', 'write', ARGV[1], 1)
redis.call('PEXPIRE', lock, ARGV[2])
return redis.status_reply('OK')
