-- Looks at fair locks, and keeps the places of their waiters.
--
--   KEYS    for each lock: lock, queue, timeouts
--   ARGV    for how many ms a place lasts; then for each lock its waiters, with a space
--           between two
--
-- Returns for each lock how it is held, with the mode "lost" if one of its waiters has no
-- place any more. Nothing if it is free, or has another type, which an attempt to take it
-- reports.

-- queue

local answers = {}
for index = 1, #KEYS, 3 do
  lock, queue, timeouts = KEYS[index], KEYS[index + 1], KEYS[index + 2]
  local mode = ''
  for waits in string.gmatch(ARGV[(index + 5) / 3], '%S+') do
    owner = waits
    local could, kept = pcall(keep_place)
    if not (could and kept) then
      mode = 'lost'
    end
  end
  local ms = redis.call('PTTL', lock)
  local is_held = ms ~= -2 and type(redis.pcall('HLEN', lock)) ~= 'table'
  answers[#answers + 1] = is_held and ms .. ':' .. mode
end
return answers
