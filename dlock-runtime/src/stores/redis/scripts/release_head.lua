-- Gives a writer's lease back, or its place in the queue, and lets the next in.
--
--   KEYS[1] lock
--   ARGV[1] the value a lock of this owner has
--   ARGV[2] its entry in the queue; only given if it may have one
--
-- Returns 1 if the lease was given back, 2 if only a place in the queue, 0 if
-- the owner had neither.

-- Nobody waits: the path of nearly every release, kept in front of the rest.
if redis.call('GET', KEYS[1]) == ARGV[1] and not ARGV[2] then
  redis.call('DEL', KEYS[1])
  return 1
end

