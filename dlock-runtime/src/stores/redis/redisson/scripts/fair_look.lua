-- Looks at fair locks that are waited for, and keeps the places of those who wait.
--
--   KEYS    of each in turn: lock, queue, timeouts
--   ARGV    for how many ms a place lasts; then of each lock in turn who waits for it, with
--           a space between two
--
-- Returns of each in turn what is held, with "lost" for its mode if one who waits has no
-- place any more; nothing if it is free, or of another type, which asking shows.

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
