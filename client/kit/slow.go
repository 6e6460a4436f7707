package kit

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// SlowNodes are the memory nodes that a worker asks last for a while, since they were slow or did
// not answer. It is a hint: a node may be slow that is not among them, and the other way round. The
// zero value has none. It is not safe for concurrent use.
type SlowNodes struct {
	until []time.Duration // by node; 0: the node is not slow
	n     int             // nodes in it
}

// Mark makes a node slow until a time.
func (s *SlowNodes) Mark(node int, until time.Duration) {
	for len(s.until) <= node {
		s.until = append(s.until, 0)
	}
	if s.until[node] == 0 {
		s.n++
	}
	s.until[node] = max(until, 1)
}

// Any reports whether some node may be slow.
func (s *SlowNodes) Any() bool { return s.n > 0 }

// Has reports whether a node is slow. It looks at the clock only when the node was marked.
func (s *SlowNodes) Has(node int, env rdma.Env) bool {
	if s.n == 0 || node >= len(s.until) || s.until[node] == 0 {
		return false
	}
	if env.Now() < s.until[node] {
		return true
	}
	s.until[node] = 0
	s.n--
	return false
}

// Clear forgets all nodes.
func (s *SlowNodes) Clear() {
	clear(s.until)
	s.n = 0
}
