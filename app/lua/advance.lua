-- Let those whose turn it is go. Follows room.lua and line.lua. ARGV[8]: most to place. Returns {call, node, call, node, ...}.
return advance(tonumber(ARGV[8]))
