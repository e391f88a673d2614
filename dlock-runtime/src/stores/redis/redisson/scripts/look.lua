-- Looks at locks that are waited for.
--
--   KEYS locks
--
-- Returns of each in turn what is held; nothing if it is free, or of another type, which
-- asking shows.

local found = {}
for index, name in ipairs(KEYS) do
  local ms = redis.call('PTTL', name)
  local mode = ms ~= -2 and redis.pcall('HGET', name, 'mode')
  local is_held = ms ~= -2 and type(mode) ~= 'table'
  found[index] = is_held and ms .. ':' .. (mode or '')
end
return found
