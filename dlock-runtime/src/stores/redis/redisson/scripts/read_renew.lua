-- Extends the lease of a reader.
--
--   KEYS[1] lock    KEYS[2] the timeout of this reader
--   ARGV[1] owner   ARGV[2] ttl in ms
--
-- Returns 1 if it was extended, 0 if it has ended.

-- Other readers may have kept its field in the hash, but not its lease.
if redis.call('HEXISTS', lock, ARGV[1]) == 0 or redis.call('PEXPIRE', KEYS[2], ARGV[2]) == 0 then
  return 0
end
redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), tonumber(ARGV[2])))
return 1
