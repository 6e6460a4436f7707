package state

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Lull paces a task that polls. After a while without work its pauses grow. They are short again
// when there is work, when a cleaner asks a question, or when a term begins.
type Lull struct {
	s  *Server
	ep rdma.Endpoint
	// Bounds of a pause.
	least, most time.Duration
	// The current pause.
	pause time.Duration
	// Until then pauses stay short.
	awake time.Duration
	// The last question and term that were seen.
	question uint64
	term     *Term
}

// NewLull returns the lull of a task with a shortest pause.
func (s *Server) NewLull(ep rdma.Endpoint, least time.Duration) Lull {
	return Lull{s: s, ep: ep, least: least, most: max(least, s.Opt.IdleEvery), pause: least}
}

// awakeFor says for how many of the longest pauses the short ones last after there was work. Others
// may wait for the task's next step, such as for leave, so no work comes before it has looked.
const awakeFor = 50

// Next returns the next pause; busy says whether the task had work. Long pauses of all tasks of a
// process end at the same time: waking a process up costs more than what its idle tasks do then.
func (l *Lull) Next(busy bool) time.Duration {
	now := l.ep.Now()
	if question, term := l.s.Quiet.Last(), l.s.Known.Last(); busy || question != l.question || term != l.term {
		l.awake, l.question, l.term = now+awakeFor*l.most, question, term
	}
	if now < l.awake || l.least == l.most {
		l.pause = l.least
		return l.pause
	}
	l.pause = min(2*l.pause, l.most)
	return min(l.pause, l.most-now%l.most)
}
