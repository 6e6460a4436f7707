package sim

// Dead reports whether a memory node has died.
func (s *Sim) Dead(node int) bool { return s.nodes[node].dead }
