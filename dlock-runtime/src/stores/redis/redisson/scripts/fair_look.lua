-- Looks at fair locks, and keeps the places of their waiters.
--
--   KEYS    for each lock: lock, queue, timeouts
--   ARGV    for how many ms a place lasts; then for each lock its channel, and its waiters,
--           with a space between two
--
-- Returns for each lock how it is held, with the mode "lost" if one of its waiters has no
-- place any more, or with the mode "turn" if it is free and another waiter is first. Nothing
-- if it is free for one of these, or has another type, which an attempt to take it reports.

-- queue

-- Whether the first is none of these and still has its place. An earlier message to it may
-- have been lost.
local function is_turn_of_another(these)
  local who = redis.call('LINDEX', queue, 0)
  local ends = who and redis.call('ZSCORE', timeouts, who)
  if not ends or these[who] or tonumber(ends) <= now() then
    return false
  end
  tell(who)
  return true
end

local answers = {}
for index = 1, #KEYS, 3 do
  lock, queue, timeouts = KEYS[index], KEYS[index + 1], KEYS[index + 2]
  local place = (index - 1) / 3 * 2 + 2
  channel = ARGV[place]
  local mode, these = '', {}
  for waits in string.gmatch(ARGV[place + 1], '%S+') do
    owner = waits
    these[owner] = true
    local could, kept = pcall(keep_place)
    if not (could and kept) then
      mode = 'lost'
    end
  end
  local ms = redis.call('PTTL', lock)
  local is_held = ms ~= -2 and type(redis.pcall('HLEN', lock)) ~= 'table'
  if ms == -2 and mode == '' then
    local could, is_turn = pcall(is_turn_of_another, these)
    answers[#answers + 1] = could and is_turn and '0:turn'
  else
    answers[#answers + 1] = is_held and ms .. ':' .. mode
  end
end
return answers
