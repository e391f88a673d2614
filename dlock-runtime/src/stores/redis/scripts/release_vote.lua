-- Gives a node's vote for a lease back. Nobody queues at a node, since none alone
-- may hand the lock on: those who wait are told, and ask all nodes themselves.
--
--   KEYS[1] lock
--   ARGV[1] owner   ARGV[2] 1 to tell those who wait
--
-- Returns 1 if the owner had the vote, else 0.

local had, held = take_back(ARGV[1])
-- Readers who stay keep out whoever waits.
if had and held == 'free' and ARGV[2] == '1' then
  publish(WAKE .. lock, ARGV[1])
end
return had and 1 or 0
