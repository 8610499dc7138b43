-- Make a sandbox: its record and start call, in line for room; what is at the head of a line and fits is placed in the same step.
-- One that a node has in stock already is taken instead, unless somebody waits for room; then the start is answered at once.
-- Follows known.lua, room.lua, line.lua and stock.lua. KEYS: call, sandbox
-- ARGV: see line.lua; from 8 on: fingerprint, owner, call id, sandbox id, line, millicpus, memory, when it gives up, most to place, most to wait,
--       mark of stock that will do ('' for none), the answer then (its envelope, to be told which sandbox), seconds for which that is kept,
--       numbers of pairs: of the record (n), and of what one in stock gets (m); the n and m pairs, then those of the call
-- Returns {word, ...}: new|attached|done|conflict|exists|crowded|large; `new` and `attached` with the node ('' while it waits), `new` also with
-- what was placed, `done` with the envelope, and with the node of what was taken from stock, `large` with the most CPUs and memory that
-- a living node has that may take it, and the number of such nodes.
local known = known_call(ARGV[8])
if known then return known end
local box = redis.call('HMGET', KEYS[2], 'state', 'owner')
if box[1] and (box[1] ~= 'stopped' and box[1] ~= 'deleted' or box[2] ~= ARGV[9]) then return {'exists', box[1]} end
if redis.call('ZCARD', names.waiting) >= tonumber(ARGV[17]) then return {'crowded'} end
local id, line, cpus, memory = ARGV[11], ARGV[12], tonumber(ARGV[13]), tonumber(ARGV[14])

local n, m = tonumber(ARGV[21]), tonumber(ARGV[22])
local first_taken, first_of_call = 23 + 2 * n, 23 + 2 * (n + m)

local only = only_node(line)

if ARGV[18] ~= '' and redis.call('ZCARD', names.lines) == 0 then
  local want = {cpus = cpus, memory = memory, ordered = line ~= '', lost_before = lost_before}
  local pairs_of_record = {}
  for i = 23, first_taken - 1, 2 do pairs_of_record[ARGV[i]] = ARGV[i + 1] end
  want.route = pairs_of_record.route
  local taken, node = take_stock(ARGV[18], want, pools_for(line, {}))
  if taken then
    local facts = redis.call('HMGET', key('node', node), 'host_name', 'host_ip')
    local answer = cjson.decode(ARGV[19])
    answer.result.sandbox_id, answer.result.host_name, answer.result.host_ip = taken, facts[1] or '', facts[2] or ''
    answer = cjson.encode(answer)
    -- It keeps its start call: to its node it is the same life as before.
    redis.call('HSET', key('sandbox', taken), unpack(ARGV, first_taken, first_of_call - 1))
    redis.call('ZADD', names.sandboxes, now, taken)
    local lease = tonumber(pairs_of_record.lease)
    if lease > 0 then redis.call('ZADD', key('node_leases', node), string.format('%.3f', now + lease), taken) end
    if want.route ~= '' then redis.call('SET', key('route', want.route), node, 'EX', ROUTE_KEPT) end
    redis.call('HSET', KEYS[1], unpack(ARGV, first_of_call))
    redis.call('HSET', KEYS[1], 'sandbox', taken, 'node', node, 'state', 'done', 'envelope', answer, 'finished', ARGV[2])
    redis.call('HDEL', KEYS[1], 'body')
    redis.call('EXPIRE', KEYS[1], ARGV[20])
    return {'done', answer, node}
  end
end

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
redis.call('HSET', KEYS[2], unpack(ARGV, 23, first_taken - 1))
redis.call('HSET', KEYS[1], unpack(ARGV, first_of_call))
redis.call('ZADD', names.sandboxes, now, id)
join_line(id, line, ARGV[15])
local placed = advance(tonumber(ARGV[16]))
return {'new', redis.call('HGET', KEYS[2], 'node'), unpack(placed)}
