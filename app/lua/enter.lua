-- Make a sandbox: its record and start call, in line for room; what is at the head of a line and fits is placed in the same step.
-- Follows known.lua, room.lua and line.lua. KEYS: call, sandbox
-- ARGV: see line.lua; from 8 on: fingerprint, owner, call id, sandbox id, line, millicpus, memory, when it gives up, most to place,
--       number of record fields n, n field/value pairs of the record, then the pairs of the call
-- Returns {word, ...}: new|attached|done|conflict|exists|large; `new` and `attached` with the node ('' while it waits), `new` also with
-- what was placed, `large` with the most CPUs and memory that a living node has that may take it, and the number of such nodes.
local known = known_call(ARGV[8])
if known then return known end
local box = redis.call('HMGET', KEYS[2], 'state', 'owner')
if box[1] and (box[1] ~= 'stopped' and box[1] ~= 'deleted' or box[2] ~= ARGV[9]) then return {'exists', box[1]} end
local id, line, cpus, memory = ARGV[11], ARGV[12], tonumber(ARGV[13]), tonumber(ARGV[14])

local only = only_node(line)

-- A node that lives, is open to this line, and is large enough; draining ones too, since they may be resumed.
local most_cpus, most_memory, alive = 0, 0, 0
local function large_enough(nodes)
  for _, node in ipairs(nodes) do
    local n = redis.call('HMGET', key('node', node), 'heartbeat', 'cpus', 'memory', 'pool', 'left')
    local pool = n[4] or ''
    local lives = tonumber(n[1] or '0') >= lost_before and (n[5] or '') == ''
    if lives and (only or line == '' or pool == '' or pool == line) then
      alive = alive + 1
      if tonumber(n[2]) >= cpus and tonumber(n[3]) >= memory then return true end
      most_cpus, most_memory = math.max(most_cpus, tonumber(n[2])), math.max(most_memory, tonumber(n[3]))
    end
  end
  return false
end
-- A few at random say yes for all but the largest wishes; all of them are asked before a no.
if not large_enough(only and {only} or redis.call('SRANDMEMBER', names.nodes, -4)) then
  most_cpus, most_memory, alive = 0, 0, 0
  if not large_enough(only and {only} or redis.call('SMEMBERS', names.nodes)) then
    return {'large', most_cpus, string.format('%.0f', most_memory), alive}
  end
end

-- An ended sandbox's record under this id makes way; its own reservation was given back when it ended.
redis.call('DEL', KEYS[2])
local n = tonumber(ARGV[17])
redis.call('HSET', KEYS[2], unpack(ARGV, 18, 17 + 2 * n))
redis.call('HSET', KEYS[1], unpack(ARGV, 18 + 2 * n))
redis.call('ZADD', names.sandboxes, now, id)
join_line(id, line, ARGV[15])
local placed = advance(tonumber(ARGV[16]))
return {'new', redis.call('HGET', KEYS[2], 'node'), unpack(placed)}
