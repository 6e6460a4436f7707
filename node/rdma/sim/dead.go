package sim

// Dead reports whether a memory node has died.
func (p *pool) Dead(node int) bool { return p.nodes[node].dead }
