-- Sandboxes of a node whose lease has ended and that have no call in flight. KEYS: node leases
-- ARGV: now, template of sandbox hash, most ids to return. An entry whose record has gone is dropped here.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
local idle = {}
for _, id in ipairs(due) do
  if #idle >= tonumber(ARGV[3]) then break end
  local inflight = redis.call('HGET', (string.gsub(ARGV[2], '%*', id)), 'inflight')
  if not inflight then
    redis.call('ZREM', KEYS[1], id)
  elseif tonumber(inflight) <= 0 then
    idle[#idle + 1] = id
  end
end
return idle
