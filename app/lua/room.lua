-- What nodes have free, and which node takes a sandbox. Prelude of every script that changes either.
-- ARGV[1]: names of keys (Keys.ledger) as JSON. An open node stands in two sorted sets of its pool, by free CPUs and by free memory;
-- a silent or draining one is taken out when it is met, and comes back with its next heartbeat or when it is resumed.
local names = cjson.decode(ARGV[1])
-- Nodes that are compared before the best of them is taken, however many there are.
local LOOK = 32
-- A node that has the image is taken unless the freest has this many times its room: a pull is slow, but one node must not get everything.
local IMAGE_WORTH = 2
-- Seconds for which a route key remembers its node.
local ROUTE_KEPT = 86400

local function key(name, part)
  local template = names[name]
  local at = string.find(template, '*', 1, true)
  return string.sub(template, 1, at - 1) .. part .. string.sub(template, at + 1)
end

local function close_node(node, pool)
  redis.call('ZREM', key('free_cpus', pool), node)
  redis.call('ZREM', key('free_memory', pool), node)
  if redis.call('ZCARD', key('free_cpus', pool)) == 0 then redis.call('SREM', names.pools, pool) end
end

-- Whether a node whose field `full_until` is this takes nothing new, since its disk was full just now.
local function is_full(full_until)
  return (tonumber(full_until or '0') or 0) > tonumber(redis.call('TIME')[1])
end

-- Write down what a node has free; `how` is 'XX' to leave a closed node closed.
local function open_node(node, how)
  local n = redis.call('HMGET', key('node', node), 'cpus', 'used_cpus', 'memory', 'used_memory', 'pool', 'state', 'full_until')
  if not n[1] or n[6] ~= 'active' or is_full(n[7]) then return end
  local pool = n[5] or ''
  local cpus, memory = tonumber(n[1]) - tonumber(n[2] or '0'), tonumber(n[3]) - tonumber(n[4] or '0')
  if how == 'XX' then
    redis.call('ZADD', key('free_cpus', pool), 'XX', cpus, node)
    redis.call('ZADD', key('free_memory', pool), 'XX', memory, node)
  else
    redis.call('ZADD', key('free_cpus', pool), cpus, node)
    redis.call('ZADD', key('free_memory', pool), memory, node)
    redis.call('SADD', names.pools, pool)
  end
end

local function take_room(node, id, cpus, memory)
  redis.call('SADD', key('node_sandboxes', node), id)
  redis.call('HINCRBY', key('node', node), 'used_cpus', cpus)
  redis.call('HINCRBY', key('node', node), 'used_memory', memory)
  open_node(node, 'XX')
end

-- Membership in the node's set is the reservation: whoever takes the id out gives the room back, and no one twice.
local function give_room_back(node, id, cpus, memory)
  if redis.call('SREM', key('node_sandboxes', node), id) == 0 then return false end
  redis.call('HINCRBY', key('node', node), 'used_cpus', -cpus)
  redis.call('HINCRBY', key('node', node), 'used_memory', -memory)
  open_node(node, 'XX')
  return true
end

-- Whether a node lives (has not signed off) and is open, and its pool; one that is not is closed, until its next heartbeat or until it is resumed
-- (or, if its disk was full, until a heartbeat after that).
local function is_open(node, want)
  local n = redis.call('HMGET', key('node', node), 'state', 'heartbeat', 'pool', 'left', 'full_until')
  local alive = tonumber(n[2] or '0') >= want.lost_before and (n[4] or '') == ''
  if n[1] == 'active' and alive and not is_full(n[5]) then return true, n[3] or '' end
  close_node(node, n[3] or '')
  return false
end

-- Nodes that an earlier start waits for, who can go nowhere else; the others leave them alone.
local kept_free = {}

-- Note for some nodes of a pool how many sandboxes of this size they have room for, by the scarcer resource; nothing for those without.
local function note_room(found, nodes, pool, want)
  local cpus = redis.call('ZMSCORE', key('free_cpus', pool), unpack(nodes))
  local memory = redis.call('ZMSCORE', key('free_memory', pool), unpack(nodes))
  for at, node in ipairs(nodes) do
    if cpus[at] and memory[at] and not kept_free[node] then
      local room = math.min(tonumber(cpus[at]) / want.cpus, tonumber(memory[at]) / want.memory)
      if room >= 1 then found[#found + 1] = {node, room} end
    end
  end
end

-- The one with most room of what was noted, that is open indeed, and its room.
local function best_of(found, want)
  table.sort(found, function(one, other)
    if one[2] ~= other[2] then return one[2] > other[2] end
    return one[1] < other[1]
  end)
  for _, candidate in ipairs(found) do
    if is_open(candidate[1], want) then return candidate[1], candidate[2] end
  end
end

-- The node of a pool with most room: among those with most free of whatever fewer nodes have enough of.
local function freest(pool, want)
  local by, least = key('free_cpus', pool), want.cpus
  local enough = redis.call('ZCOUNT', by, want.cpus, '+inf')
  local enough_memory = redis.call('ZCOUNT', key('free_memory', pool), want.memory, '+inf')
  if enough == 0 or enough_memory == 0 then return nil end
  if enough_memory < enough then by, least = key('free_memory', pool), want.memory end
  local from = 0
  while true do
    local nodes = redis.call('ZREVRANGEBYSCORE', by, '+inf', least, 'LIMIT', from, LOOK)
    if #nodes == 0 then return nil end
    local found = {}
    note_room(found, nodes, pool, want)
    local node, room = best_of(found, want)
    if node then return node, room end
    -- Those that fitted were closed just now, and are not in the way of the next.
    from = from + #nodes - #found
  end
end

-- The members of a set of nodes; of very many some.
local function some_of(set)
  if redis.call('SCARD', set) > LOOK then return redis.call('SRANDMEMBER', set, -LOOK) end
  return redis.call('SMEMBERS', set)
end

-- Among the nodes of some pools, one with most room of those that have the image.
local function freest_with_image(pools, want)
  local nodes = some_of(key('image_nodes', want.image))
  if #nodes == 0 then return nil end
  local found = {}
  for pool in pairs(pools) do note_room(found, nodes, pool, want) end
  return best_of(found, want)
end

-- The node of a route key, if it can take the sandbox and is in one of the pools.
local function routed(pools, want)
  local node = want.route ~= '' and redis.call('GET', key('route', want.route))
  if not node then return nil end
  local open, pool = is_open(node, want)
  if not open or not pools[pool] then return nil end
  local found = {}
  note_room(found, {node}, pool, want)
  return found[1] and node
end

-- The node for a sandbox, nil when none of the pools has room. `pools`: a list, in order of preference if `want.ordered`.
local function choose(want, pools)
  local allowed = {}
  for _, pool in ipairs(pools) do allowed[pool] = true end
  local node = routed(allowed, want)
  if node then return node end
  local best, most
  for _, pool in ipairs(pools) do
    local node, room = freest(pool, want)
    if node and (not best or room > most) then best, most = node, room end
    if best and want.ordered then
      allowed = {[pool] = true}
      break
    end
  end
  if not best then return nil end
  local near, room = freest_with_image(allowed, want)
  return near and room * IMAGE_WORTH >= most and near or best
end
