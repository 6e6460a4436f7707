package kv

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// lull is for how long a task that has nothing to do waits before it looks again: twice as long each time, until there
// is something, or cleaners ask, or another term begins.
type lull struct {
	s           *Server
	ep          rdma.Endpoint
	least, most time.Duration
	pause       time.Duration
	question    uint64
	term        *term
}

// newLull returns that of a task, which waits for at least so long.
func (s *Server) newLull(ep rdma.Endpoint, least time.Duration) lull {
	return lull{s: s, ep: ep, least: least, most: max(least, s.o.IdleEvery)}
}

// next returns the next pause, the shortest one if the task had something to do. The longest ones of all tasks of a
// process end at the same time: to wake a process costs more than what idle tasks do then.
func (l *lull) next(busy bool) time.Duration {
	if question, term := l.s.quiet.last(), l.s.known.last(); busy || question != l.question || term != l.term {
		l.pause, l.question, l.term = 0, question, term
	}
	l.pause = max(l.least, min(2*l.pause, l.most))
	if l.pause == l.least {
		return l.pause
	}
	return min(l.pause, l.most-l.ep.Now()%l.most)
}
