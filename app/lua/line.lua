-- Who waits for room, and whose turn it is. Follows room.lua. ARGV[2]: now, ARGV[3]: heartbeat before which a node is lost,
-- ARGV[4], ARGV[5]: queue and message of START ('' when the caller sends it), ARGV[6], ARGV[7]: marks of node and call in both.
-- A line is strictly first come, first served. Lines differ by the cluster that is asked for, and meet at nodes that are open to several:
-- no node takes a start while an earlier one waits that it could take. So a large start is never starved by small ones.
local now, lost_before = tonumber(ARGV[2]), tonumber(ARGV[3])
-- Seconds beyond its own limit that a node has to say itself how far a start came.
local GRACE = 30

-- Keep the turn of a line's head.
local function note_head(line)
  local head = redis.call('ZRANGE', key('line', line), 0, 0, 'WITHSCORES')
  if head[1] then
    redis.call('ZADD', names.lines, head[2], line)
  else
    redis.call('ZREM', names.lines, line)
  end
end

local function leave_line(id, line)
  redis.call('ZREM', names.waiting, id)
  if redis.call('ZREM', key('line', line), id) == 0 then return false end
  note_head(line)
  return true
end

local function join_line(id, line, give_up)
  local turn = redis.call('INCR', names.turn)
  redis.call('ZADD', key('line', line), turn, id)
  redis.call('ZADD', names.waiting, give_up, id)
  note_head(line)
end

-- Replace every `mark`; what is put in holds no letter that is special to a pattern, and neither do marks.
local function filled(text, node, call)
  return (string.gsub(string.gsub(text, ARGV[6], node), ARGV[7], call))
end

-- The pools that the head of a line may use, less those that an earlier start waits for.
local function pools_for(line, blocked)
  local open = {}
  local wanted = line == '' and redis.call('SMEMBERS', names.pools) or {line, ''}
  for _, pool in ipairs(wanted) do
    if not blocked[pool] then open[#open + 1] = pool end
  end
  return open
end

-- The only node that those in a line can go to, nil when there is none such.
local function only_node(line)
  return string.sub(line, 1, 1) == '@' and string.sub(line, 2) or nil
end

-- Reserve room for a waiting start and send it to its node; returns its call and the node, or nil when there is no room.
local function place(id, line, blocked)
  local box = redis.call('HMGET', key('sandbox', id), 'start_call', 'cpus', 'memory', 'route', 'image', 'node', 'state')
  if not box[1] or box[6] ~= '' or box[7] ~= 'pending' then
    leave_line(id, line)
    return false
  end
  local want = {
    cpus = tonumber(box[2]), memory = tonumber(box[3]), route = box[4] or '', image = box[5] or '',
    ordered = line ~= '', lost_before = lost_before,
  }
  local only, node = only_node(line), nil
  if only then
    local open, pool = is_open(only, want)
    local found = {}
    if open and not blocked[pool] then note_room(found, {only}, pool, want) end
    node = found[1] and only
  else
    node = choose(want, pools_for(line, blocked))
  end
  if not node then return nil end
  local call = box[1]
  local facts = redis.call('HMGET', key('node', node), 'host_name', 'host_ip', 'deployment')
  redis.call('HSET', key('sandbox', id), 'node', node, 'host_name', facts[1] or '', 'host_ip', facts[2] or '', 'runtime', facts[3] or '')
  take_room(node, id, want.cpus, want.memory)
  -- What an earlier life of this id has left on that node is this one's to clear away.
  redis.call('ZREM', key('node_stopped', node), id)
  redis.call('HSET', key('call', call), 'node', node)
  if tonumber(redis.call('HGET', key('call', call), 'deadline') or '') then
    redis.call('HINCRBYFLOAT', key('call', call), 'deadline', GRACE)
  end
  redis.call('ZADD', key('node_inflight', node), now, call)
  leave_line(id, line)
  if want.route ~= '' then redis.call('SET', key('route', want.route), node, 'EX', ROUTE_KEPT) end
  if ARGV[4] ~= '' then redis.call('LPUSH', filled(ARGV[4], node, call), filled(ARGV[5], node, call)) end
  return call, node
end

-- Let heads go while there is room, at most `most`; returns {call, node, call, node, …}.
local function advance(most)
  local placed, blocked, after = {}, {}, '-inf'
  while #placed < 2 * most do
    local found = redis.call('ZRANGEBYSCORE', names.lines, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not found[1] then break end
    local line = found[1]
    local id = redis.call('ZRANGE', key('line', line), 0, 0)[1]
    local call, node = false, nil
    if id then call, node = place(id, line, blocked) else note_head(line) end
    if call == nil then
      if line == '' then break end
      if only_node(line) then kept_free[only_node(line)] = true else blocked[line], blocked[''] = true, true end
    elseif call then
      placed[#placed + 1] = call
      placed[#placed + 1] = node
    end
    after = '(' .. found[2]
  end
  return placed
end
