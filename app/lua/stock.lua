-- Sandboxes in stock: started ahead on a node's pool, for whoever asks for the same. Follows room.lua.
-- They hold no room: an idle one costs little, a start that needs the room finds it, and the node ends what it has no room for any more.
-- Whoever takes one takes its room in the same step.
local function shelf(mark, node) return key('stock', mark .. ':' .. node) end

local function shelve(node, id, mark)
  redis.call('SADD', shelf(mark, node), id)
  redis.call('SADD', key('stock', mark), node)
end

-- Whoever takes an id off its shelf has it, and no one else.
local function unshelve(node, id, mark)
  redis.call('HDEL', key('node_stock', node), id)
  local was = redis.call('SREM', shelf(mark, node), id) == 1
  if redis.call('EXISTS', shelf(mark, node)) == 0 then redis.call('SREM', key('stock', mark), node) end
  return was
end

-- Take a sandbox of a mark for a start that may use these pools; returns its id and node, or nil. Its room is taken, too.
local function take_stock(mark, want, pools)
  local nodes = some_of(key('stock', mark))
  if #nodes == 0 then return nil end
  local allowed = {}
  for _, pool in ipairs(pools) do allowed[pool] = true end
  local at_home = routed(allowed, want)
  if at_home then nodes = {at_home} end
  local found, node = {}, nil
  for _, pool in ipairs(pools) do
    note_room(found, nodes, pool, want)
    if want.ordered then node = node or best_of(found, want) end
  end
  node = node or best_of(found, want)
  local id = node and redis.call('SRANDMEMBER', shelf(mark, node))
  if not id then return nil end
  unshelve(node, id, mark)
  take_room(node, id, want.cpus, want.memory)
  return id, node
end
