package transport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
)

// stream is one connection of a link, as far as answers come in over it.
//
// Workers read themselves while they wait. Of those that wait for answers over the stream, the
// first one reads. It lands what comes in, its own and that of the others, until there is
// something for it; then one of the others goes on. A goroutine that only read would cost each
// answer a switch between threads. It is there only for answers that no worker waits for in this
// way: see assist. The right to read is a token, reader, that passes from worker to worker:
//
//	take   get it, unless another goroutine has it
//	pull   read once and land what is whole, as often as it takes
//	give   put it back, and rouse a worker that waits, or the goroutine of assist
//
// A worker that finds the token taken enters waiting, tries once more, and parks. A reader puts
// the token back before it looks at waiting. So either the worker gets the token, or the reader
// sees it.
//
// in[:have] was read and not landed: it is the beginning of one frame. in grows to the longest
// frame that came, which MaxAnswer bounds, and keeps its length as long as the connection lasts.
type stream struct {
	nc     net.Conn
	spin   *spinner      // of the reader
	over   chan struct{} // closed when the connection broke
	reader chan struct{} // full while a goroutine reads, which then owns in, have and deadline
	in     []byte
	have   int
	// deadline is when the connection's own is, on realtime.Now; 0: it has none. It is left as it
	// is while it comes too early: then the reader sets another one and reads on.
	deadline time.Duration

	// mu guards waiting. Nothing else is locked under it. aside counts without it; kick holds one
	// wake-up, which waits for the goroutine that it is for.
	mu      sync.Mutex
	waiting []*Waiter    // workers for which another goroutine reads
	aside   atomic.Int32 // workers that wait for several links at a time, and read none
	kick    chan struct{}
}

func newStream(nc net.Conn) *stream {
	return &stream{nc: nc, spin: newSpinner(nc), over: make(chan struct{}), reader: make(chan struct{}, 1),
		in: make([]byte, InBytes), kick: make(chan struct{}, 1)}
}

// take makes the caller the reader, unless there is one, and reports whether it did. It never
// blocks. The caller calls give when it stops, also when the connection broke.
func (s *stream) take() bool {
	select {
	case s.reader <- struct{}{}:
		return true
	default:
		return false
	}
}

// give lets others read. The token is free before next looks. A reader that comes in between
// calls next when it stops.
func (s *stream) give() {
	<-s.reader
	s.next()
}

// pull reads once, by the deadline, and lands the answers that are whole. Each completes the
// flight that is the oldest. The caller is the reader. in and what points into it are its own: a
// flight copies what it keeps. It returns nil when the deadline passed, which a plain connection
// and TLS survive. until 0 is no deadline. An error says that the connection is of no use any
// more: the caller fails it.
func (l *Link) pull(s *stream, until time.Duration) error {
	if until != s.deadline && (s.deadline == 0 || s.deadline > until || s.deadline <= realtime.Now()) {
		s.deadline = until
		at := time.Time{}
		if until > 0 {
			at = time.Now().Add(until - realtime.Now())
		}
		s.nc.SetReadDeadline(at)
	}
	n, err := s.nc.Read(s.in[s.have:])
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		return err
	}
	l.heard.Store(int64(realtime.Now()))
	s.have += n
	used, whole, err := l.landFrames(s.in[:s.have])
	if err != nil {
		return err
	}
	// The next frame does not fit. ParseHeader has bounded it.
	if whole > len(s.in) {
		s.in = append(s.in, make([]byte, whole-len(s.in))...)
	}
	s.have = copy(s.in, s.in[used:s.have])
	return nil
}

// Take lands whole frames that come otherwise than by being read: see Neighbor. The node calls it
// for one connection at a time, which takes the place of the reader. p is the node's, and is not
// used any more when Take returns.
func (l *Link) Take(p []byte) (int, error) {
	l.heard.Store(int64(realtime.Now()))
	n, _, err := l.landFrames(p)
	return n, err
}

// landFrames lands the whole frames at the beginning of p. It returns how many bytes they were,
// and how many the next one has, as far as p says. Those before a frame that breaks the protocol
// have landed, and none behind it does.
func (l *Link) landFrames(p []byte) (used, next int, err error) {
	for len(p)-used >= HeaderBytes {
		h, err := ParseHeader(p[used:], MaxAnswer)
		if err != nil {
			return used, 0, err
		}
		end := used + HeaderBytes + h.Body
		if end > len(p) {
			return used, HeaderBytes + h.Body, nil
		}
		if err := l.land(h, p[used+HeaderBytes:end]); err != nil {
			return used, 0, err
		}
		used = end
	}
	return used, 0, nil
}

// land lands a frame. Answers come in the order of the requests. One with another tag than the
// oldest flight's breaks the link. Takes and Flight.Land run in the goroutine that reads, while
// no other answer lands: neither may wait for one.
func (l *Link) land(h Header, body []byte) error {
	if h.Kind == KindPing && h.Body == 0 {
		return nil // it has been heard, out of turn: see memnode's conn.sendKeepalives
	}
	if h.Kind == KindMessage && l.Takes != nil {
		return l.Takes(h, body)
	}
	f, ok := l.pop(h.Tag)
	if !ok {
		return fmt.Errorf("an answer to nothing that was asked: %w", ErrProtocol)
	}
	if err := f.Land(h, body); err != nil {
		// It has left the queue, so that fail does not find it.
		f.Lose(fmt.Errorf("node at %s: %w", l.Addr, unlinked(err)))
		return err
	}
	return nil
}

// Await returns when something arrived for w, or at until on realtime.Now; 0: never. It reads,
// unless another goroutine does. No wake-up is missed: w is among those that wait before it tries
// to read once more, and a reader that stops rouses one of those that wait. It may return
// earlier: when the connection broke, or when it was roused in vain. Callers collect, look, and
// call it again.
func (l *Link) Await(w *Waiter, until time.Duration) {
	s := l.stream.Load()
	if s == nil || l.Beside != nil || !s.take() {
		if s == nil || l.Beside != nil {
			// what was in flight is lost, and word of that is on its way; or answers come without
			// being read
			w.park(until)
			return
		}
		s.mu.Lock()
		s.waiting = append(s.waiting, w)
		s.mu.Unlock()
		mine := s.take() // else the reader sees w when it stops
		if !mine {
			w.park(until)
			// It was roused to read, or has word, or it is late.
			mine = !w.word() && s.take()
		}
		// From here on next must choose another one: w reads, or returns.
		s.leave(w)
		if !mine {
			// w may be the worker that next roused to read.
			s.next()
			return
		}
	}
	for !w.word() && (until == 0 || realtime.Now() < until) {
		s.spin.spin()
		if err := l.pull(s, until); err != nil {
			l.fail(s.nc, err)
			break
		}
	}
	s.give()
}

// leave takes w out of those that wait.
func (s *stream) leave(w *Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(o *Waiter) bool { return o == w })
}

// next has another worker read, unless a goroutine does. A goroutine that stops reading, or was
// woken to read and does not, calls it. A worker that is roused in vain parks again, or passes
// the call on: see Await.
func (s *stream) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.reader) > 0: // that reader calls it when it stops
	case len(s.waiting) > 0:
		s.waiting[0].rouse()
	case s.aside.Load() > 0:
		s.call()
	}
}

// call wakes the goroutine that reads while no worker does. It never blocks.
func (s *stream) call() { Wake(s.kick) }

// assist reads answers that no worker reads: those of workers that do not wait, or wait for
// several nodes at a time. It is in a Read without a deadline while nothing comes. A worker that
// begins to wait then parks, and has its answer landed by this goroutine, which gives the token
// up behind that.
func (l *Link) assist(s *stream) {
	for {
		select {
		case <-s.over:
			return
		case <-s.kick:
		}
		if !s.take() {
			continue
		}
		for s.alone() { // idle, too: so that the end of a connection is noticed at once
			if err := l.pull(s, 0); err != nil {
				l.fail(s.nc, err)
				break
			}
		}
		s.give()
	}
}

// readAll reads until the connection breaks: over a link for control no worker reads itself.
// Nothing waits for such a link by Await, so that the token is never missed.
func (l *Link) readAll(s *stream) {
	s.reader <- struct{}{}
	defer s.give()
	for {
		if err := l.pull(s, 0); err != nil {
			l.fail(s.nc, err)
			return
		}
	}
}

// alone reports whether no worker would read. Workers that wait for several links do not read. So
// for them the goroutine reads on, though others wait that would.
func (s *stream) alone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) == 0 || s.aside.Load() > 0
}

// ReadAside has what comes in read while no worker reads. It returns at once.
func (l *Link) ReadAside() {
	if s := l.stream.Load(); s != nil {
		s.call()
	}
}

// Awaited reports whether something is in flight. A ping is not in flight: its answer is awaited
// by no worker.
func (l *Link) Awaited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.n > 0
}

// Attend has what comes unasked read at once, from now on. It is for processes with mailboxes to
// which messages come from device to device: what a node says of their senders is heard though no
// worker waits. It holds for later connections, too, and is not taken back.
func (l *Link) Attend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attended {
		return
	}
	// Connect does the same for the connections that follow.
	l.attended = true
	if s := l.stream.Load(); s != nil {
		s.aside.Add(1)
		s.call()
	}
}
