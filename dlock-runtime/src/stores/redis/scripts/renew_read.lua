-- Extends a reader's lease if it is still a holder. Never takes the lock.
--
--   KEYS[1] lock
--   ARGV[1] owner   ARGV[2] ttl in ms
--
-- Returns 1 if the lease was extended, 0 if it has ended.

local owner, ttl = ARGV[1], tonumber(ARGV[2])
if state() ~= 'read' or not answers_as_reader(owner) then
  return 0
end
keep_queue(let_in(owner, ttl), ttl)
-- A writer who died at the head of the queue must not keep the readers behind
-- it out for as long as this lease is renewed.
advance(true)
return 1
