package kv

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// lull is for how long a task that has nothing to do waits before it looks again: for long when
// there was nothing for a while. It begins anew when there is something, or cleaners ask, or
// another term begins.
type lull struct {
	s           *Server
	ep          rdma.Endpoint
	least, most time.Duration
	pause       time.Duration
	awake       time.Duration // until then pauses stay short
	question    uint64
	term        *term
}

// newLull returns that of a task, which waits for at least so long.
func (s *Server) newLull(ep rdma.Endpoint, least time.Duration) lull {
	return lull{s: s, ep: ep, least: least, most: max(least, s.o.IdleEvery), pause: least}
}

// awakeFor is for how many of the longest pauses they stay short: others may wait for what the task
// does next, such as for leave, so that nothing comes before it has looked.
const awakeFor = 50

// next returns the next pause, the shortest one if the task had something to do. Long ones end at
// the same time for all tasks of a process: to wake a process costs more than what idle tasks do
// then.
func (l *lull) next(busy bool) time.Duration {
	now := l.ep.Now()
	if question, term := l.s.quiet.last(), l.s.known.last(); busy || question != l.question || term != l.term {
		l.awake, l.question, l.term = now+awakeFor*l.most, question, term
	}
	if now < l.awake || l.least == l.most {
		l.pause = l.least
		return l.pause
	}
	l.pause = min(2*l.pause, l.most)
	return min(l.pause, l.most-now%l.most)
}
