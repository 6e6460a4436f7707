package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

const (
	socketBytes = 1 << 20  // of the send buffer of a connection to a node
	InBytes     = 64 << 10 // of a connection's input, unless a frame needs more
	// inlineBytes is how much may be on its way to a node before writing is left to a goroutine of
	// its own: so much fits the socket's buffer, so that a worker's write does not block even when
	// the node reads nothing.
	inlineBytes = socketBytes / 4
	// mostQueued bounds what waits to be sent to a node that reads nothing.
	mostQueued = 64 << 20
	// RedialMin is how soon a connection that broke is made again.
	RedialMin = 5 * time.Millisecond
	redialMax = 500 * time.Millisecond
)

// A Flight is one frame that was sent and has not been answered. Land takes the answer; Lose
// takes the reason why there will be none. One of the two is called, once, by the link's reader
// or by the goroutine that breaks the link. A Land that returns an error is followed by Lose.
type Flight interface {
	Land(h Header, body []byte) error
	Lose(err error)
}

// Link is this process's connection to one node for one purpose. All endpoints share it: what they
// send while a goroutine writes goes with the next write. A link that breaks takes what is in
// flight down with it, and is made again. The node lets the new connection in only when nothing
// that came over the old one can be executed any more.
type Link struct {
	Addr  string
	s     Security
	Hello Hello
	stop  <-chan struct{} // closed with the fabric

	Begun func(Sending)                     // called first on each connection; nil: nothing is to be sent then
	Takes func(h Header, body []byte) error // takes messages; nil: none come

	Beside Neighbor // the connection is no socket; nil: it is one

	Unwatched bool // silence ends no connection: for tests in which each wake-up counts

	Key    atomic.Uint64          // the node's, for verbs
	Every  time.Duration          // how often the node is asked for how long it serves; 0: never
	until  atomic.Int64           // the node serves for sure, on realtime.Boot: see serving
	hears  atomic.Int64           // see control's Control.Hears
	fence  atomic.Uint64          // the epoch that was fenced last there, as it said then
	stream atomic.Pointer[stream] // nil while it is down

	mu    sync.Mutex
	nc    net.Conn      // nil while it is down
	why   error         // while it is down
	since time.Duration // when it went down, on realtime.Now
	// out is what is to be written: whole frames, in the order of queue. The node executes them
	// in that order, which is what the order of verbs rests on.
	out   []byte
	spare []byte
	// writing is true while one goroutine writes, or is about to: frames never mix on the wire.
	writing    bool
	queue      flights // what is in flight, in order
	bytes      int     // of frames that are not answered
	taken      uint64  // bytes of the connection that were taken from out, and of those that were written
	written    uint64
	tag        uint32
	heavy      chan struct{} // wakes the goroutine that writes when much is on its way
	heard      atomic.Int64  // when something came in last, on realtime.Now
	times      uint64        // how often it was connected
	attended   bool          // what comes unasked is read at once
	noListener bool          // the last call met no listener, or a node that is not of the pool
}

// Neighbor is a node of this process.
type Neighbor interface {
	// Attach connects a link for verbs by calls of functions: what is written to the connection the
	// node executes at once, and what it answers it hands to Link.Take. What the link had
	// before has ended when Attach returns.
	Attach(l *Link) (net.Conn, Welcome, error)
}

// NewLink returns a link that is down until it is connected. It ends when stop is closed.
func NewLink(addr string, s Security, h Hello, stop <-chan struct{}) *Link {
	return &Link{
		Addr: addr, s: s, Hello: h, stop: stop, heavy: make(chan struct{}, 1), since: realtime.Now(),
		why: fmt.Errorf("node at %s was not called yet: %w", addr, rdma.ErrNodeDown),
	}
}

// Connect makes the connection, once. It is called when the connection before has ended: run waits
// for its reader, and fail has lost all that was in flight. The lock is held until Begun's frames
// are the first ones.
func (l *Link) Connect(ctx context.Context) (Welcome, error) {
	nc, w, err := l.dial(ctx)
	l.mu.Lock()
	if err != nil {
		defer l.mu.Unlock()
		l.why = unlinked(err)
		var no *Refused
		l.noListener = errors.Is(err, unix.ECONNREFUSED) || errors.As(err, &no) && no.Status == StatusDown
		return w, err
	}
	l.noListener = false
	l.Key.Store(w.Key)
	l.heard.Store(int64(realtime.Now()))
	l.nc, l.why, l.taken, l.written = nc, nil, 0, 0
	l.times++
	stream := newStream(nc)
	if l.attended {
		stream.aside.Add(1)
	}
	l.stream.Store(stream)
	s := Sending{l}
	if l.Begun != nil {
		l.Begun(s)
	}
	if s.Done() {
		l.Flush()
	}
	return w, nil
}

func (l *Link) dial(ctx context.Context) (net.Conn, Welcome, error) {
	if l.Beside != nil {
		return l.Beside.Attach(l)
	}
	return Dial(ctx, l.Addr, l.s, l.Hello)
}

// IsBeside reports whether the link's node is one of this process.
func (l *Link) IsBeside() bool { return l.Beside != nil }

// Keep keeps the link connected until the fabric is closed. Connected: it is now.
func (l *Link) Keep(connected bool) {
	pause := RedialMin
	for {
		if connected {
			pause = RedialMin
			l.run()
		}
		select {
		case <-l.stop:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, redialMax)
		ctx, cancel := context.WithTimeout(context.Background(), DeadAfter)
		end := StopWith(l.stop, cancel)
		_, err := l.Connect(ctx)
		end()
		cancel()
		connected = err == nil
	}
}

// StopWith calls f when stop is closed, until the function that it returns is called. When end
// returns, f is not running.
func StopWith(stop <-chan struct{}, f func()) (end func()) {
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-stop:
			f()
		case <-done:
		}
	}()
	return func() { close(done); <-over }
}

// run serves the connection until it breaks. When it returns, all flights are lost, and no
// goroutine reads that connection any more.
func (l *Link) run() {
	s := l.stream.Load()
	if s == nil {
		return
	}
	var group sync.WaitGroup
	if !l.Unwatched {
		group.Go(func() { l.watch(s) })
	} else {
		group.Go(func() { l.failAtStop(s) })
	}
	group.Go(func() { l.writeHeavy(s) })
	if l.Every > 0 {
		group.Go(func() { l.keepServed(s) })
	}
	if l.Hello.Purpose == ForVerbs {
		s.call()
		l.assist(s)
	} else {
		l.readAll(s)
	}
	group.Wait()
	s.reader <- struct{}{} // for good: the last reader has seen the end, and lands nothing any more
}

// BreakOff breaks the connection, for tests of what its users do then, and reports whether there is
// one. They are told why; nil: it is left to them to see it.
func (l *Link) BreakOff(why error) bool {
	l.mu.Lock()
	nc := l.nc
	l.mu.Unlock()
	switch {
	case nc == nil:
	case why == nil:
		nc.Close()
	default:
		l.fail(nc, why)
	}
	return nc != nil
}

// Suspend has the link count as down, for tests of what its users do then, until resume.
func (l *Link) Suspend(why error) (resume func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	nc, was := l.nc, l.why
	l.nc, l.why = nil, why
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.nc, l.why = nc, was
	}
}

// fail breaks the connection nc, if it is still the link's. What is lost may have been executed,
// or never sent: the link cannot tell, and sends none of it again. The order counts. The stream
// is nil before a flight is lost, so that Await reads no more. All are lost before over is
// closed, for which run waits before the next Connect.
func (l *Link) fail(nc net.Conn, err error) {
	defer nc.Close() // behind the reason: else the reader gives its own
	l.mu.Lock()
	if l.nc != nc {
		l.mu.Unlock()
		return
	}
	s := l.stream.Swap(nil)
	l.nc, l.since = nil, realtime.Now()
	l.why = fmt.Errorf("connection to node at %s: %w", l.Addr, unlinked(err))
	// Frames that no goroutine has begun to write go with out: they certainly have no effect, but
	// their flights are lost as the others are.
	why := l.why
	lost := l.queue.take()
	l.out, l.bytes = l.out[:0], 0
	l.mu.Unlock()
	for _, f := range lost {
		f.f.Lose(why)
	}
	close(s.over)
}

// MaxAnswer bounds an answer's body in bytes.
const MaxAnswer = max(MaxItems*(ResultBytes+16)+MaxData, 1<<20) // of the registry's answers the longest are pages of it

// pop takes the flight that an answer with that tag is of; false: it is not the oldest one's.
func (l *Link) pop(tag uint32) (Flight, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, ok := l.queue.pop(tag)
	l.bytes -= f.bytes
	return f.f, ok
}

// Sending is a link with its lock held, while frames are appended to what it is about to write.
type Sending struct{ l *Link }

// Begin locks the link, unless it is down. The caller appends frames to l.out, and then calls done.
func (l *Link) Begin() (Sending, error) {
	l.mu.Lock()
	switch {
	case l.nc == nil:
		defer l.mu.Unlock()
		return Sending{}, l.why
	case len(l.out) > mostQueued:
		defer l.mu.Unlock()
		return Sending{}, fmt.Errorf("node at %s reads nothing: %w", l.Addr, rdma.ErrNodeDown)
	}
	return Sending{l}, nil
}

// Out is what the link is about to write: frames are appended to it.
func (s Sending) Out() *[]byte { return &s.l.out }

// Times returns which of the link's connections this is, from 1 on.
func (s Sending) Times() uint64 { return s.l.times }

// Cancel unlocks the link, to which nothing was appended.
func (s Sending) Cancel() { s.l.mu.Unlock() }

// Tell ends a frame that begins at from and is not answered.
func (s Sending) Tell(k Kind, st Status, items, from int) {
	Header{Body: len(s.l.out) - from - HeaderBytes, Kind: k, Status: st, Items: items}.Put(s.l.out[from:])
}

// End puts the header in front of a frame that begins at from, and notes the flight that waits for
// its answer.
func (s Sending) End(k Kind, items, from int, f Flight) {
	l := s.l
	l.tag++
	n := len(l.out) - from
	Header{Body: n - HeaderBytes, Kind: k, Items: items, Tag: l.tag}.Put(l.out[from:])
	l.queue.push(inFlight{f, l.tag, n})
	l.bytes += n
}

// Send sends a frame of what body appends behind the header, and notes f, which takes its answer.
func (l *Link) Send(k Kind, items int, f Flight, body func(out []byte) []byte) error {
	s, err := l.Begin()
	if err != nil {
		return err
	}
	from := len(l.out)
	l.out = body(append(l.out, make([]byte, HeaderBytes)...))
	s.End(k, items, from, f)
	if s.Done() {
		l.Flush()
	}
	return nil
}

// Done unlocks the link and reports whether the caller has to write, by calling flush: no other
// goroutine does.
func (s Sending) Done() bool {
	l := s.l
	if l.writing {
		l.mu.Unlock()
		return false
	}
	// The socket's buffer may be full. Writing could block the worker.
	if l.bytes > inlineBytes {
		l.mu.Unlock()
		l.handOver()
		return false
	}
	l.writing = true
	l.mu.Unlock()
	return true
}

// handOver leaves writing to the goroutine that may wait for the node.
func (l *Link) handOver() { Wake(l.heavy) }

// Wake lets the goroutine that receives from a channel of one go on, now or when it receives next.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Flush writes what there is to write, and what others add meanwhile, as long as that does not
// block.
func (l *Link) Flush() {
	if !l.write(inlineBytes) {
		l.handOver()
	}
}

// write writes until nothing is left, or more than most bytes are on their way: then it returns
// false. It does so, too, when there is another connection: to a node beside that has no lease each
// takes long, and breaks, and a Post would not end. The caller has set writing. It owns the buffer
// that it took until it holds mu again.
func (l *Link) write(most int) bool {
	l.mu.Lock()
	for nc := l.nc; len(l.out) > 0 && nc != nil && l.nc == nc && l.bytes <= most; {
		p := l.out
		l.out, l.spare = l.spare[:0], nil
		l.taken += uint64(len(p))
		l.mu.Unlock()
		_, err := nc.Write(p)
		if err != nil {
			l.fail(nc, err)
		}
		l.mu.Lock()
		if l.nc == nc {
			l.written += uint64(len(p))
		}
		if cap(p) > mostQueued/16 {
			p = nil
		}
		l.spare = p[:0]
	}
	l.writing = false
	over := len(l.out) == 0 || l.nc == nil
	l.mu.Unlock()
	return over
}

// writeHeavy writes for workers that must not wait for a node that is slow to read.
func (l *Link) writeHeavy(s *stream) {
	for {
		select {
		case <-s.over:
			return
		case <-l.heavy:
		}
		l.mu.Lock()
		mine := !l.writing && len(l.out) > 0
		l.writing = l.writing || mine
		l.mu.Unlock()
		if mine && !l.write(math.MaxInt) {
			l.handOver() // to the next connection's
		}
	}
}

// Gone reports whether the process that was called is no more: no process listens there, or one
// that is a node of no such pool.
func (l *Link) Gone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nc == nil && l.noListener
}

// Up reports whether the link is connected.
func (l *Link) Up() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// DownFor returns for how long the link has been down; 0: it is up.
func (l *Link) DownFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == nil {
		return 0
	}
	return max(realtime.Now()-l.since, 1)
}

// inFlight is a frame that is not answered yet.
type inFlight struct {
	f     Flight
	tag   uint32
	bytes int
}

// flights is a queue that allocates nothing in steady state. Answers come in order, so that only
// the oldest flight is ever taken out, by its tag.
type flights struct {
	p       []inFlight // its length is a power of two
	head, n int
}

func (r *flights) push(f inFlight) {
	if r.n == len(r.p) {
		bigger := make([]inFlight, max(64, 2*len(r.p)))
		for i := range r.n {
			bigger[i] = r.p[(r.head+i)&(len(r.p)-1)]
		}
		r.p, r.head = bigger, 0
	}
	r.p[(r.head+r.n)&(len(r.p)-1)] = f
	r.n++
}

func (r *flights) pop(tag uint32) (f inFlight, ok bool) {
	if r.n == 0 || r.p[r.head].tag != tag {
		return inFlight{}, false
	}
	f = r.p[r.head]
	r.p[r.head] = inFlight{}
	r.head = (r.head + 1) & (len(r.p) - 1)
	r.n--
	return f, true
}

func (r *flights) take() (all []inFlight) {
	for r.n > 0 {
		f, _ := r.pop(r.p[r.head].tag)
		all = append(all, f)
	}
	return all
}

// blip is for how long a connection that broke may take to be made again before its node counts as
// down.
const blip = 200 * time.Millisecond

// Reply is what a node answers to a control message, in JSON.
type Reply interface {
	Why() string // of the error; "": there is none
}

// Ask asks the node at the end of l something and waits for its answer, both in JSON; m's text
// is for errors. A connection that breaks meanwhile is made again, and the question asked again: it
// does no harm to hear one twice. A node that cannot be connected to for a blip is not waited for.
func Ask[R Reply](l *Link, m fmt.Stringer, within time.Duration) (R, error) {
	all, down := realtime.Within(within), realtime.Patience{}
	for {
		r, err := askOver[R](l, m, &all)
		var no *Refused
		if err == nil || errors.As(err, &no) || !errors.Is(err, rdma.ErrNodeDown) || all.Over() {
			return r, err
		}
		if down == (realtime.Patience{}) || l.Up() == nil {
			down = realtime.Within(blip)
		}
		if down.Over() {
			return r, err
		}
		select {
		case <-time.After(RedialMin):
		case <-l.stop:
			return r, err
		}
	}
}

// askOver asks once, over the connection that there is. All tries of an Ask share the patience.
func askOver[R Reply](l *Link, m fmt.Stringer, patience *realtime.Patience) (none R, err error) {
	began, q := realtime.Now(), &question[R]{done: make(chan struct{})}
	s, err := l.Begin()
	if err != nil {
		return none, err
	}
	from := len(l.out)
	if l.out, err = AppendMessage(l.out, KindControl, StatusOK, 0, m); err != nil {
		l.mu.Unlock()
		return none, err
	}
	s.End(KindControl, 0, from, q)
	if s.Done() {
		l.Flush()
	}
	// A question that is given up stays in the queue. Its answer lands in q later, unseen.
	late := time.NewTimer(patience.Until() - began)
	defer late.Stop()
	for {
		select {
		case <-q.done:
			return q.reply, q.err
		case <-late.C:
			now := realtime.Now()
			if patience.Over() {
				return none, fmt.Errorf("%s: node at %s has not answered for %v: %w", m, l.Addr,
					now-began, rdma.ErrNodeDown)
			}
			late.Reset(patience.Until() - now)
		}
	}
}

// question is a control message in flight.
type question[R Reply] struct {
	done  chan struct{}
	reply R
	err   error
}

func (q *question[R]) Land(h Header, body []byte) error {
	if h.Kind != KindControl {
		return fmt.Errorf("frame of kind %d answers a message: %w", h.Kind, ErrProtocol)
	}
	if err := json.Unmarshal(body, &q.reply); err != nil {
		return fmt.Errorf("decode an answer: %w: %w", ErrProtocol, err)
	}
	if h.Status != StatusOK {
		q.err = &Refused{h.Status, q.reply.Why()}
	}
	close(q.done)
	return nil
}

func (q *question[R]) Lose(err error) {
	q.err = err
	close(q.done)
}

// Nudge has the node say something, at once.
func (l *Link) Nudge() {
	s, err := l.Begin()
	if err != nil {
		return
	}
	s.ping()
	if s.Done() {
		l.Flush()
	}
}
