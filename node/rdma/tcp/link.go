package tcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

const (
	// inlineBytes is how much may be on its way to a node before writing is left to a goroutine of
	// its own: so much fits the socket's buffer, so that a worker's write does not block even when
	// the node reads nothing.
	inlineBytes = socketBytes / 4
	// mostQueued bounds what waits to be sent to a node that reads nothing.
	mostQueued = 64 << 20
	redialMin  = 5 * time.Millisecond
	redialMax  = 500 * time.Millisecond
)

// A flight is one frame that was sent and has not been answered. Land takes the answer; Lose takes
// the reason why there will be none. One of the two is called, once, by the link's reader or by the
// goroutine that breaks the link.
type flight interface {
	land(h header, body []byte) error
	lose(err error)
}

// link is this process's connection to one node for one purpose. All endpoints share it: what they
// send while a goroutine writes goes with the next write. A link that breaks takes what is in
// flight down with it, and is made again. The node lets the new connection in only when nothing
// that came over the old one can be executed any more.
type link struct {
	addr  string
	s     Security
	hello hello
	stop  <-chan struct{} // closed with the fabric

	begun func(sending)                     // called first on each connection; nil: nothing is to be sent then
	takes func(h header, body []byte) error // takes messages; nil: none come

	beside *Node // of this process: the connection is no socket; nil: it is one

	key    atomic.Uint64          // the node's, for verbs
	every  time.Duration          // how often the node is asked for how long it serves; 0: never
	until  atomic.Int64           // the node serves for sure, on realtime.Boot: see serving
	hears  atomic.Int64           // see Fabric.Hears
	fence  atomic.Uint64          // the epoch that was fenced last there, as it said then
	stream atomic.Pointer[stream] // nil while it is down

	mu         sync.Mutex
	nc         net.Conn      // nil while it is down
	why        error         // while it is down
	since      time.Duration // when it went down, on realtime.Now
	out        []byte        // to be written
	spare      []byte
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

func newLink(addr string, s Security, h hello, stop <-chan struct{}) *link {
	return &link{
		addr: addr, s: s, hello: h, stop: stop, heavy: make(chan struct{}, 1), since: realtime.Now(),
		why: fmt.Errorf("node at %s was not called yet: %w", addr, rdma.ErrNodeDown),
	}
}

// connect makes the connection, once.
func (l *link) connect(ctx context.Context) (welcome, error) {
	nc, w, err := l.dial(ctx)
	l.mu.Lock()
	if err != nil {
		defer l.mu.Unlock()
		l.why = unlinked(err)
		var no *refused
		l.noListener = errors.Is(err, unix.ECONNREFUSED) || errors.As(err, &no) && no.status == statusDown
		return w, err
	}
	l.noListener = false
	l.key.Store(w.Key)
	l.heard.Store(int64(realtime.Now()))
	l.nc, l.why, l.taken, l.written = nc, nil, 0, 0
	l.times++
	stream := newStream(nc)
	if l.attended {
		stream.aside.Add(1)
	}
	l.stream.Store(stream)
	s := sending{l}
	if l.begun != nil {
		l.begun(s)
	}
	if s.done() {
		l.flush()
	}
	return w, nil
}

func (l *link) dial(ctx context.Context) (net.Conn, welcome, error) {
	if l.beside != nil {
		return l.beside.attach(l)
	}
	return dial(ctx, l.addr, l.s, l.hello)
}

// keep keeps the link connected until the fabric is closed. Connected: it is now.
func (l *link) keep(connected bool) {
	pause := redialMin
	for {
		if connected {
			pause = redialMin
			l.run()
		}
		select {
		case <-l.stop:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, redialMax)
		ctx, cancel := context.WithTimeout(context.Background(), deadAfter)
		end := stopWith(l.stop, cancel)
		_, err := l.connect(ctx)
		end()
		cancel()
		connected = err == nil
	}
}

// stopWith calls f when stop is closed, until the function that it returns is called.
func stopWith(stop <-chan struct{}, f func()) (end func()) {
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

// run serves the connection until it breaks.
func (l *link) run() {
	s := l.stream.Load()
	if s == nil {
		return
	}
	var group sync.WaitGroup
	group.Go(func() { l.watch(s) })
	group.Go(func() { l.writeHeavy(s) })
	if l.every > 0 {
		group.Go(func() { l.keepServed(s) })
	}
	if l.hello.Purpose == forVerbs {
		s.call()
		l.assist(s)
	} else {
		l.readAll(s)
	}
	group.Wait()
	s.reader <- struct{}{} // for good: the last reader has seen the end, and lands nothing any more
}

// fail breaks the connection nc, if it is still the link's.
func (l *link) fail(nc net.Conn, err error) {
	defer nc.Close() // behind the reason: else the reader gives its own
	l.mu.Lock()
	if l.nc != nc {
		l.mu.Unlock()
		return
	}
	s := l.stream.Swap(nil)
	l.nc, l.since = nil, realtime.Now()
	l.why = fmt.Errorf("connection to node at %s: %w", l.addr, unlinked(err))
	why := l.why
	lost := l.queue.take()
	l.out, l.bytes = l.out[:0], 0
	l.mu.Unlock()
	for _, f := range lost {
		f.f.lose(why)
	}
	close(s.over)
}

// maxAnswer bounds an answer's body in bytes.
const maxAnswer = max(maxItems*(resultBytes+16)+maxData, 1<<20) // of the board's answers the longest are pages of it

func (l *link) pop(tag uint32) (flight, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, ok := l.queue.pop(tag)
	l.bytes -= f.bytes
	return f.f, ok
}

// sending is a link with its lock held, while frames are appended to what it is about to write.
type sending struct{ l *link }

// begin locks the link, unless it is down. The caller appends frames to l.out, and then calls done.
func (l *link) begin() (sending, error) {
	l.mu.Lock()
	switch {
	case l.nc == nil:
		defer l.mu.Unlock()
		return sending{}, l.why
	case len(l.out) > mostQueued:
		defer l.mu.Unlock()
		return sending{}, fmt.Errorf("node at %s reads nothing: %w", l.addr, rdma.ErrNodeDown)
	}
	return sending{l}, nil
}

// end puts the header in front of a frame that begins at from, and notes the flight that waits for
// its answer.
func (s sending) end(k kind, items, from int, f flight) {
	l := s.l
	l.tag++
	n := len(l.out) - from
	header{body: n - headerBytes, kind: k, items: items, tag: l.tag}.put(l.out[from:])
	l.queue.push(inFlight{f, l.tag, n})
	l.bytes += n
}

// send sends a frame of what body appends behind the header, and notes f, which takes its answer.
func (l *link) send(k kind, items int, f flight, body func(out []byte) []byte) error {
	s, err := l.begin()
	if err != nil {
		return err
	}
	from := len(l.out)
	l.out = body(append(l.out, make([]byte, headerBytes)...))
	s.end(k, items, from, f)
	if s.done() {
		l.flush()
	}
	return nil
}

// done unlocks the link and reports whether the caller has to write, by calling flush: no other
// goroutine does.
func (s sending) done() bool {
	l := s.l
	if l.writing {
		l.mu.Unlock()
		return false
	}
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
func (l *link) handOver() { wake(l.heavy) }

// wake lets the goroutine that receives from a channel of one go on, now or when it receives next.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flush writes what there is to write, and what others add meanwhile, as long as that does not
// block.
func (l *link) flush() {
	if !l.write(inlineBytes) {
		l.handOver()
	}
}

// write writes until nothing is left, or more than most bytes are on their way: then it returns
// false. It does so, too, when there is another connection: to a node beside that has no lease each
// takes long, and breaks, and a Post would not end.
func (l *link) write(most int) bool {
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
func (l *link) writeHeavy(s *stream) {
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

// gone reports whether the process that was called is no more: no process listens there, or one
// that is a node of no such pool.
func (l *link) gone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nc == nil && l.noListener
}

// up reports whether the link is connected.
func (l *link) up() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// downFor returns for how long the link has been down; 0: it is up.
func (l *link) downFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == nil {
		return 0
	}
	return max(realtime.Now()-l.since, 1)
}

// inFlight is a frame that is not answered yet.
type inFlight struct {
	f     flight
	tag   uint32
	bytes int
}

// flights is a queue that allocates nothing in steady state.
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

// control asks the node something and waits for its answer. A connection that breaks meanwhile is
// made again, and the question asked again: it does no harm to hear one twice. A node that cannot
// be connected to for a blip is not waited for.
func (l *link) control(m *message, within time.Duration) (reply, error) {
	all, down := realtime.Within(within), realtime.Patience{}
	for {
		r, err := l.ask(m, &all)
		var no *refused
		if err == nil || errors.As(err, &no) || !errors.Is(err, rdma.ErrNodeDown) || all.Over() {
			return r, err
		}
		if down == (realtime.Patience{}) || l.up() == nil {
			down = realtime.Within(blip)
		}
		if down.Over() {
			return r, err
		}
		select {
		case <-time.After(redialMin):
		case <-l.stop:
			return r, err
		}
	}
}

func (l *link) ask(m *message, patience *realtime.Patience) (reply, error) {
	began, q := realtime.Now(), &question{done: make(chan struct{})}
	s, err := l.begin()
	if err != nil {
		return reply{}, err
	}
	from := len(l.out)
	if l.out, err = appendMessage(l.out, kindControl, statusOK, 0, m); err != nil {
		l.mu.Unlock()
		return reply{}, err
	}
	s.end(kindControl, 0, from, q)
	if s.done() {
		l.flush()
	}
	late := time.NewTimer(patience.Until() - began)
	defer late.Stop()
	for {
		select {
		case <-q.done:
			return q.reply, q.err
		case <-late.C:
			now := realtime.Now()
			if patience.Over() {
				return reply{}, fmt.Errorf("%s: node at %s has not answered for %v: %w", m.Do, l.addr,
					now-began, rdma.ErrNodeDown)
			}
			late.Reset(patience.Until() - now)
		}
	}
}

// question is a control message in flight.
type question struct {
	done  chan struct{}
	reply reply
	err   error
}

func (q *question) land(h header, body []byte) error {
	if h.kind != kindControl {
		return fmt.Errorf("frame of kind %d answers a message: %w", h.kind, ErrProtocol)
	}
	if err := json.Unmarshal(body, &q.reply); err != nil {
		return fmt.Errorf("decode an answer: %w: %w", ErrProtocol, err)
	}
	if h.status != statusOK {
		q.err = &refused{h.status, q.reply.Text}
	}
	close(q.done)
	return nil
}

func (q *question) lose(err error) {
	q.err = err
	close(q.done)
}

// yieldToWorkers lets workers that are ready post before this one writes, so that one write carries
// what all of them have.
func yieldToWorkers() { runtime.Gosched() }
