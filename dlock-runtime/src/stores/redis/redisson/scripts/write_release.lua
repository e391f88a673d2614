-- Gives a read/write lock back that was had to write, and tells all who wait, or are about to.
--
--   KEYS[1] lock    KEYS[2] never there, see names.rs
--   ARGV[1] owner, with ":write"   ARGV[2] channel
--
-- Returns 1 if the owner had it, else 0.

if redis.call('HDEL', lock, ARGV[1]) == 0 then
  return 0
end
if redis.call('HLEN', lock) == 1 then
  redis.call('DEL', lock)
else
  -- Somebody has let readers in beside the writer, and they stay.
  redis.call('HSET', lock, 'mode', 'read')
end
publish(ARGV[2], '1')
-- On the first message, Redisson wakes as many threads as are asleep (`LockPubSub`). A
-- thread that was told that the lock is held, and is not asleep yet, would miss it, and
-- sleep for as long as this lease would have lasted. The second message waits for that
-- thread.
publish(ARGV[2], '0')
return 1
