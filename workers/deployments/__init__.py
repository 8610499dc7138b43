"""How a node runs sandboxes: `abstract` is the port, `docker` and `local` implement it, `manager` picks."""
