package ibverbs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// soft is an adapter in software: queue pairs of one process, each with a goroutine that executes
// what it sends, in order, on the other end's memory. As with a device, nothing tells a sender that
// the other end is gone, local memory is touched until a queue pair is closed, and what was on its
// way then may arrive. It is where faults come from that hardware has too seldom.
type soft struct {
	net *network
	lim limits
}

// network is what several adapters are connected by.
type network struct {
	t     testing.TB
	mu    sync.Mutex
	pairs map[uint32]*softPair
	mems  map[uint32]*softMemory
	last  uint32
	open  atomic.Int32 // things that were made and not closed

	// Of adapters that are made from now on:
	fenceless bool  // they keep no fences
	mtu       uint8 // as limits.mtu; 0: 5

	slow  atomic.Int64 // ns that every request takes
	fault atomic.Pointer[func(p *softPair, q request) status]
	past  atomic.Int64                                      // requests that have arrived, or never will
	full  atomic.Bool                                       // no memory is registered
	lame  atomic.Bool                                       // ends that post do not connect
	hasty atomic.Bool                                       // what finds no buffer is not sent again
	room  atomic.Pointer[func(p *softPair, q request) bool] // whether a queue pair takes a request
}

// fail has requests end as f says; nil: as they would.
func (n *network) fail(f func(p *softPair, q request) status) {
	if f == nil {
		n.fault.Store(nil)
		return
	}
	n.fault.Store(&f)
}

func newNetwork(t testing.TB) *network {
	return &network{t: t, pairs: map[uint32]*softPair{}, mems: map[uint32]*softMemory{}}
}

func (n *network) adapter() *soft {
	n.open.Add(1)
	return &soft{n, limits{inline: 64, depth: 64, room: 1 << 15, pairs: 1 << 20, slots: 1 << 15,
		mtu: cmp.Or(n.mtu, 5), fences: !n.fenceless}}
}

func (s *soft) limits() limits    { return s.lim }
func (s *soft) at() (string, int) { return "soft", 1 }
func (s *soft) close() error      { s.net.open.Add(-1); return nil }

func (n *network) number() uint32 { n.last++; return n.last }

type softMemory struct {
	net    *network
	base   unsafe.Pointer
	size   uint64
	key    uint32
	remote bool
}

func (s *soft) register(base unsafe.Pointer, size uint64, remote bool) (memory, error) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if s.net.full.Load() {
		return nil, noMemory("soft", size, unix.ENOMEM)
	}
	m := &softMemory{s.net, base, size, s.net.number(), remote}
	s.net.mems[m.key] = m
	s.net.open.Add(1)
	return m, nil
}

func (m *softMemory) keys() (local, remote uint32) { return m.key, m.key }

func (m *softMemory) close() error {
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	if m.net.mems[m.key] != m {
		return fmt.Errorf("memory %d was closed before", m.key)
	}
	delete(m.net.mems, m.key)
	m.net.open.Add(-1)
	return nil
}

// at is where n bytes at an address are; nil: not in this memory.
func (m *softMemory) at(addr uint64, n uint32) unsafe.Pointer {
	off := addr - uint64(uintptr(m.base))
	if off > m.size || uint64(n) > m.size-off {
		return nil
	}
	return unsafe.Add(m.base, off)
}

// add raises the word at an address that is registered with the network, and returns what it was.
func (n *network) add(addr, v uint64) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.mems {
		if at := m.at(addr, 8); at != nil {
			return memcopy.FetchAdd((*uint64)(at), v)
		}
	}
	return 0
}

func (n *network) word(addr uint64) uint64 { return n.add(addr, 0) }

type softQueue struct {
	s    *soft
	room int

	mu    sync.Mutex
	done  []completion
	armed bool
	event chan struct{}
	late  *time.Timer
	other *softQueue // of the same events
}

func (s *soft) completions(room int) (completions, error) {
	s.net.open.Add(1)
	return &softQueue{s: s, room: room, event: make(chan struct{}, 1)}, nil
}

func (q *softQueue) beside(room int) (completions, error) {
	q.s.net.open.Add(1)
	q.other = &softQueue{s: q.s, room: room, event: q.event}
	return q.other, nil
}

func (q *softQueue) close() error { q.s.net.open.Add(-1); return nil }

func (q *softQueue) push(c completion) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.done) == q.room {
		q.s.net.t.Errorf("a queue for %d completions is full", q.room)
		return
	}
	q.done = append(q.done, c)
	if q.armed {
		q.armed = false
		select {
		case q.event <- struct{}{}:
		default:
		}
	}
}

func (q *softQueue) poll(into []completion, spin time.Duration) int {
	for until := realtime.Now() + spin; ; {
		q.mu.Lock()
		n := copy(into, q.done)
		q.done = append(q.done[:0], q.done[n:]...)
		q.mu.Unlock()
		if n > 0 || spin == 0 || realtime.Now() > until {
			return n
		}
	}
}

func (q *softQueue) arm() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = true
	if q.other != nil {
		return q.other.arm()
	}
	return nil
}

func (q *softQueue) await(until time.Duration) error {
	if q.late == nil {
		q.late = time.NewTimer(until - realtime.Now())
	} else {
		q.late.Reset(until - realtime.Now())
	}
	defer q.late.Stop()
	select {
	case <-q.event:
	case <-q.late.C:
	}
	return nil
}

func (q *softQueue) post(groups []group, requests []request) {
	for i := range groups {
		g := &groups[i]
		q.s.net.mu.Lock()
		p := q.s.net.pairs[uint32(g.pair)]
		q.s.net.mu.Unlock()
		for _, r := range requests[g.first : g.first+g.n] {
			if !p.send(r, g.key) {
				g.errno = 12
				break
			}
			g.taken++
		}
	}
}

// softPair is one end of a connection.
type softPair struct {
	q      *softQueue
	number uint32
	may    access
	depth  int
	into   *softReceives // nil: it takes no messages

	mu     sync.Mutex // held while something of the other end is executed here, and while this end lands a result
	peer   uint32
	closed bool
	still  bool // it takes no messages any more
	sent   []sending
	data   []byte // what is on its way
	inUse  int    // requests that have no completion yet
	wake   chan struct{}
	over   chan struct{}
}

type sending struct {
	request
	far    uint32
	inline [64]byte
}

func (q *softQueue) pair(depth int, may access) (pair, error) { return q.newPair(depth, may, nil) }

func (q *softQueue) newPair(depth int, may access, into *softReceives) (pair, error) {
	n := q.s.net
	n.mu.Lock()
	defer n.mu.Unlock()
	p := &softPair{q: q, number: n.number(), may: may, depth: depth, into: into, wake: make(chan struct{}, 1),
		over: make(chan struct{})}
	n.pairs[p.number] = p
	n.open.Add(1)
	go p.run()
	return p, nil
}

func (p *softPair) handle() uintptr { return uintptr(p.number) }

func (p *softPair) card() card {
	return card{qpn: p.number, mtu: p.q.s.lim.mtu, rdAtomic: 16, ethernet: true}
}

func (p *softPair) connect(remote card) error {
	if p.may == accessNone && p.q.s.net.lame.Load() {
		return fmt.Errorf("queue pair %d: %w", p.number, unix.EINVAL)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peer = remote.qpn
	return nil
}

func (p *softPair) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.still = true
	return nil
}

func (p *softPair) close() error {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.mu.Unlock()
	if was {
		return fmt.Errorf("queue pair %d was closed before", p.number)
	}
	close(p.over)
	n := p.q.s.net
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pairs, p.number)
	n.open.Add(-1)
	return nil
}

func (p *softPair) send(r request, far uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if room := p.q.s.net.room.Load(); p.closed || p.inUse == p.depth || room != nil && !(*room)(p, r) {
		return false
	}
	p.inUse++
	s := sending{request: r, far: far}
	if r.flags&flagInline != 0 {
		copy(s.inline[:], unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&s.local))), r.n))
	}
	p.sent = append(p.sent, s)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return true
}

// run executes what this end sends, until a failure: behind that everything is flushed.
func (p *softPair) run() {
	failed := false
	covered := 0
	for {
		p.mu.Lock()
		var s sending
		any := len(p.sent) > 0
		if any {
			s = p.sent[0]
			p.sent = p.sent[:copy(p.sent, p.sent[1:])]
		}
		p.mu.Unlock()
		if !any {
			select {
			case <-p.over:
				return
			case <-p.wake:
			}
			continue
		}
		st := statusFlushed
		if !failed {
			st = p.execute(s)
		}
		if st == silent {
			<-p.over
			return
		}
		failed = failed || st != statusSuccess
		covered++
		if s.flags&flagSignal != 0 || st != statusSuccess {
			p.mu.Lock()
			p.inUse -= covered
			p.mu.Unlock()
			covered = 0
			p.q.push(completion{id: s.id, status: st})
		}
	}
}

// A message that finds no buffer is sent again, as often as on soft-RoCE.
const (
	softRetries = 60
	softPause   = 640 * time.Microsecond
)

func (p *softPair) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// silent: there is never an answer.
const silent status = 1 << 20

func (p *softPair) execute(s sending) status {
	n := p.q.s.net
	data, ok := p.fetch(&s)
	if !ok {
		return statusProtection
	}
	defer n.past.Add(1)
	if d := time.Duration(n.slow.Load()); d > 0 {
		time.Sleep(d)
	}
	if f := n.fault.Load(); f != nil {
		if st := (*f)(p, s.request); st != statusSuccess {
			return st
		}
	}
	n.mu.Lock()
	far, m := n.pairs[p.peer], n.mems[s.far]
	n.mu.Unlock()
	if far == nil {
		return silent
	}
	st := far.serve(p.number, m, s, data)
	for again := 0; st == statusNotReady && again < softRetries && !n.hasty.Load() && !p.isClosed(); again++ {
		time.Sleep(softPause)
		st = far.serve(p.number, m, s, data)
	}
	if st != statusSuccess || s.gives() {
		return st
	}
	return p.land(&s, data)
}

// fetch takes the bytes of a request from local memory, or makes room for them.
func (p *softPair) fetch(s *sending) (data []byte, ok bool) {
	if int(s.n) > len(p.data) {
		p.data = make([]byte, s.n)
	}
	data = p.data[:s.n]
	if s.flags&flagInline != 0 {
		copy(data, s.inline[:])
		return data, true
	}
	return data, !s.gives() || p.local(s, func(near []byte) { copy(data, near) }) == statusSuccess
}

func (p *softPair) land(s *sending, data []byte) status {
	return p.local(s, func(near []byte) { copy(near, data) })
}

// local touches the bytes of a request at this end, if it is open.
func (p *softPair) local(s *sending, touch func(near []byte)) status {
	n := p.q.s.net
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return silent
	}
	n.mu.Lock()
	m := n.mems[s.key]
	n.mu.Unlock()
	switch {
	case s.n == 0:
		return statusSuccess
	case m == nil || m.at(s.local, s.n) == nil:
		return statusProtection
	}
	touch(unsafe.Slice((*byte)(m.at(s.local, s.n)), s.n))
	return statusSuccess
}

// serve executes what comes from the other end. p is what is written, or takes what is read.
func (p *softPair) serve(from uint32, m *softMemory, s sending, data []byte) status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.peer != from {
		return silent
	}
	if s.op == uint8(rdma.Send) {
		return p.take(data)
	}
	if m == nil || !m.remote || p.may == accessNone || p.may == accessRead && s.op != uint8(rdma.Read) {
		return statusRemoteAccess
	}
	at := m.at(s.remote, s.n)
	if at == nil {
		return statusRemoteAccess
	}
	switch w := (*uint64)(at); rdma.Verb(s.op) {
	case rdma.Read:
		memcopy.Load(data, at)
	case rdma.Write:
		memcopy.Store(at, data)
	case rdma.CompareSwap:
		binary.NativeEndian.PutUint64(data, memcopy.CompareSwap(w, s.a, s.b))
	case rdma.FetchAdd:
		binary.NativeEndian.PutUint64(data, memcopy.FetchAdd(w, s.a))
	default:
		return statusBadRequest
	}
	return statusSuccess
}

// gives reports whether bytes go to the other end.
func (s *sending) gives() bool { return s.op == uint8(rdma.Write) || s.op == uint8(rdma.Send) }

// softReceives is a receive queue.
type softReceives struct {
	net *network

	mu    sync.Mutex
	slots []softSlot
}

type softSlot struct {
	id     uint64
	buffer []byte
}

func (s *soft) receives(int) (receives, error) {
	s.net.open.Add(1)
	return &softReceives{net: s.net}, nil
}

func (r *softReceives) pair(q completions, may access) (pair, error) {
	return q.(*softQueue).newPair(1, may, r)
}

func (r *softReceives) post(id uint64, buffer []byte, key uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slots = append(r.slots, softSlot{id, buffer})
	return nil
}

func (r *softReceives) close() error { r.net.open.Add(-1); return nil }

// take takes a message. The caller holds mu.
func (p *softPair) take(data []byte) status {
	if p.still {
		return silent
	}
	if p.into == nil {
		return statusRemoteOp
	}
	r := p.into
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.slots) == 0 {
		return statusNotReady
	}
	slot := r.slots[0]
	r.slots = r.slots[:copy(r.slots, r.slots[1:])]
	if len(data) > len(slot.buffer) {
		p.q.push(completion{id: slot.id, status: statusLocalLength, pair: p.number})
		return statusBadRequest
	}
	copy(slot.buffer, data)
	p.q.push(completion{id: slot.id, n: uint32(len(data)), pair: p.number})
	return statusSuccess
}
