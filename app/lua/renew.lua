-- Read a sandbox's record and prolong its lease if it runs and the caller may see it. KEYS: sandbox
-- ARGV: sandbox id, now, owner, is_admin, template of node leases, of node hash, of a line
-- Returns {record as a flat list, heartbeat of its node, its place in line}, or {} when there is none for this caller.
local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then return {} end
local box = {}
for i = 1, #fields, 2 do box[fields[i]] = fields[i + 1] end
if box.owner ~= ARGV[3] and ARGV[4] ~= '1' then return {} end
local lease = tonumber(box.lease)
if box.state == 'running' and lease > 0 then
  local expires = string.format('%.3f', tonumber(ARGV[2]) + lease)
  redis.call('HSET', KEYS[1], 'expires', expires)
  redis.call('ZADD', (string.gsub(ARGV[5], '%*', box.node)), expires, ARGV[1])
  for i = 1, #fields, 2 do if fields[i] == 'expires' then fields[i + 1] = expires end end
end
if box.node == '' then
  -- Waiting for room, or ended while it did. The line's name may hold any letter, so the template is put together by hand.
  local before, behind = string.match(ARGV[7], '^(.-)%*(.*)$')
  return {fields, '0', (redis.call('ZRANK', before .. (box.line or '') .. behind, ARGV[1]) or -1) + 1}
end
return {fields, redis.call('HGET', (string.gsub(ARGV[6], '%*', box.node)), 'heartbeat') or '0', 0}
