-- Gives a node's vote for a lease back. Nobody queues at a node, since none alone
-- may hand the lock on: those who wait are told, and ask all nodes themselves.
--
--   KEYS[1] lock
--   ARGV[1] owner   ARGV[2] 1 to tell those who wait
--
-- Returns 0 if the owner had no vote. Otherwise 1, plus the number of subscribers that were told.

local had, held = take_back(ARGV[1])
if not had then
  return 0
end
-- While readers remain, no waiter can get this vote, so none is notified.
return 1 + (held == 'free' and ARGV[2] == '1' and publish(WAKE .. lock, ARGV[1]) or 0)
