package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
)

// fakeDevice records the connections to a node's memory.
type fakeDevice struct {
	mu     sync.Mutex
	base   unsafe.Pointer
	fail   error  // of Register and Connect
	answer []byte // of Connect
	live   map[string]bool
	closed int // registrations
}

func newFakeDevice() *fakeDevice {
	return &fakeDevice{answer: []byte("welcome"), live: map[string]bool{}}
}

func (d *fakeDevice) Fabric() string { return "fake" }

func (d *fakeDevice) Register(base unsafe.Pointer, size uint64) (Registration, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return nil, d.fail
	}
	d.base = base
	return d, nil
}

func (d *fakeDevice) Connect(offer []byte, readOnly bool) ([]byte, DeviceConn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return nil, nil, d.fail
	}
	name := strings.TrimRight(string(offer), "\x00")
	if readOnly {
		name += ", read only"
	}
	if d.live[name] {
		return nil, nil, fmt.Errorf("%q is connected twice: %w", name, rdma.ErrHeld)
	}
	d.live[name] = true
	return d.answer, fakeConn{d, name}, nil
}

func (d *fakeDevice) word(off uint64) *uint64 { return (*uint64)(unsafe.Add(d.base, off)) }

func (d *fakeDevice) CompareSwap(off, expect, value uint64) uint64 {
	return memcopy.CompareSwap(d.word(off), expect, value)
}
func (d *fakeDevice) FetchAdd(off, n uint64) uint64 { return memcopy.FetchAdd(d.word(off), n) }

func (d *fakeDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed++
	if len(d.live) > 0 {
		return fmt.Errorf("%v are connected yet", d.live)
	}
	return nil
}

func (d *fakeDevice) connected(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live[name]
}

type fakeConn struct {
	d    *fakeDevice
	name string
}

func (c fakeConn) End() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.live, c.name)
}

// attach asks for a connection, and returns how that ends.
func attach(t testing.TB, c net.Conn, what int, r rights, offer string) (status, string) {
	t.Helper()
	p := append(r.append(nil), offer...)
	for len(p)%8 != 0 {
		p = append(p, 0)
	}
	h, body, err := say(c, frame(kindAttach, what, 1, p))
	if err != nil || h.kind != kindAttach || h.items > len(body) {
		t.Fatalf("%+v, %q, %v", h, body, err)
	}
	return h.status, string(body[:h.items])
}

// served asks for how long the node serves, and which epoch was fenced last.
func served(t testing.TB, c net.Conn) (time.Duration, uint64) {
	t.Helper()
	h, body, err := say(c, frame(kindServe, 0, 1, nil))
	if err != nil || h.status != statusOK || len(body) != servedBytes {
		t.Fatalf("%+v, %x, %v", h, body, err)
	}
	return time.Duration(binary.LittleEndian.Uint64(body)), binary.LittleEndian.Uint64(body[8:])
}

// TestDeviceConnects makes connections to a node's memory, and ends them.
func TestDeviceConnects(t *testing.T) {
	d := newFakeDevice()
	n := newRawNode(t, Config{Device: d})
	c := n.call(t, forVerbs)
	r := n.rights()
	if st, text := attach(t, c, attachNew, r, "first"); st != statusOK || text != "welcome" || !d.connected("first") {
		t.Errorf("status %d, %q", st, text)
	}
	if st, text := attach(t, c, attachAsk, r, ""); st != statusOK || text != "" || !d.connected("first") {
		t.Errorf("a client that asks: status %d, %q", st, text)
	}
	if st, _ := attach(t, c, attachNew, r, "second"); st != statusOK || d.connected("first") || !d.connected("second") {
		t.Errorf("the next one: status %d, %v", st, d.live)
	}
	other := n.rightsOf(2)
	if st, _ := attach(t, c, attachNew, other, "other"); st != statusOK || !d.connected("second") ||
		!d.connected("other") {
		t.Errorf("another worker: status %d, %v", st, d.live)
	}
	if st, _ := attach(t, c, attachNew, n.rightsOf(0), "look"); st != statusOK || d.connected("look") ||
		!d.connected("look, read only") {
		t.Errorf("without an identity: status %d, %v", st, d.live)
	}
	if st, _ := attach(t, c, attachEnd, r, ""); st != statusOK || d.connected("second") || !d.connected("other") {
		t.Errorf("the end: status %d, %v", st, d.live)
	}
	if st, _ := attach(t, c, attachEnd, r, ""); st != statusOK {
		t.Errorf("the end of nothing: status %d", st)
	}
	c.Close()
	for until := time.Now().Add(rawPatience); d.connected("other"); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a worker is connected behind the end of its process's connection")
		}
	}
}

// TestDeviceRefuses asks for connections with rights that are not valid. A worker that had a
// connection then has it no more: what is refused does not land later, even if the process that
// fenced it off has not reached the node yet.
func TestDeviceRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p *pool, r *rights)
		want   status
		had    bool // and its connection is ended
	}{
		"another key":         {func(_ *pool, r *rights) { r.key++ }, statusAccess, false},
		"the key of readers":  {func(p *pool, r *rights) { r.key = p.readKey }, statusAccess, false},
		"a client far beyond": {func(_ *pool, r *rights) { r.client = 1<<16 - 1 }, statusAccess, false},
		"a life that is over": {func(p *pool, _ *rights) { p.revoked[1].Store(1) }, statusRevoked, true},
		"an epoch that is":    {func(p *pool, _ *rights) { p.fence.Store(5) }, statusStale, true},
		"a client that asks without one": {func(p *pool, r *rights) {
			p.revoked[2].Store(1)
			r.client = 2
		}, statusRevoked, false},
	} {
		for _, what := range []int{attachAsk, attachNew, attachEnd} {
			t.Run(fmt.Sprint(name, what), func(t *testing.T) {
				d := newFakeDevice()
				n := newRawNode(t, Config{Device: d})
				conn := n.call(t, forVerbs)
				r := n.rights()
				if st, _ := attach(t, conn, attachNew, r, "had"); st != statusOK {
					t.Fatalf("status %d", st)
				}
				c.change(n.pool.Load(), &r)
				if st, _ := attach(t, conn, what, r, "new"); st != c.want || d.connected("new") ||
					d.connected("had") == c.had {
					t.Errorf("status %d, want %d; connected are %v", st, c.want, d.live)
				}
			})
		}
	}
}

// TestDeviceTellsOfFence asks how long a node serves while an epoch is about to be fenced off: a
// client that learns of the fence may say that what was posted before does not land later.
func TestDeviceTellsOfFence(t *testing.T) {
	d := newFakeDevice()
	n := newRawNode(t, Config{Device: d})
	c := n.call(t, forVerbs)
	if left, fence := served(t, c); left <= 0 || fence != 0 {
		t.Errorf("it serves for %v, of epoch %d", left, fence)
	}
	if st, _ := attach(t, c, attachNew, n.rights(), "had"); st != statusOK {
		t.Fatalf("status %d", st)
	}
	n.pool.Load().fence.Store(3)
	if _, fence := served(t, c); fence != 3 || d.connected("had") {
		t.Errorf("the epoch fenced is %d; connected are %v", fence, d.live)
	}
}

// TestDeviceFencing ends connections in each of the ways in which a node is told to.
func TestDeviceFencing(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(n *rawNode) error
		left bool // another worker, of a later epoch
	}{
		"fence":  {func(n *rawNode) error { n.pool.Load().fenceOff(1); return nil }, true},
		"revoke": {func(n *rawNode) error { return n.pool.Load().revoke(1, 1) }, true},
		"expel":  {func(n *rawNode) error { return n.pool.Load().expel(1, 0) }, false},
		"reset":  {func(n *rawNode) error { n.mu.Lock(); defer n.mu.Unlock(); return n.reset() }, false},
		"close":  {func(n *rawNode) error { return n.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newFakeDevice()
			n := newRawNode(t, Config{Device: d})
			conn, r := n.call(t, forVerbs), n.rightsOf(2)
			r.epoch = 1
			for side, r := range map[string]rights{"own": n.rights(), "other": r} {
				if st, _ := attach(t, conn, attachNew, r, side); st != statusOK {
					t.Fatalf("status %d", st)
				}
			}
			if err := c.end(n); err != nil {
				t.Fatal(err)
			}
			if d.connected("own") || d.connected("other") != c.left {
				t.Errorf("connected are %v", d.live)
			}
		})
	}
}

// TestDeviceBounds asks for too much: of a node without a device, over control, with too much to
// say, too often.
func TestDeviceBounds(t *testing.T) {
	plain := newRawNode(t, Config{})
	if st, text := attach(t, plain.call(t, forVerbs), attachNew, plain.rights(), "offer"); st != statusNotSupported ||
		!strings.Contains(text, "no device") {
		t.Errorf("a node without a device: status %d, %q", st, text)
	}
	d := newFakeDevice()
	n := newRawNode(t, Config{Device: d})
	c := n.call(t, forVerbs)
	if st := outcome(t, c, frame(kindVerbs, 1, 1, n.rights().faa(8))); st != statusNotSupported || n.word(8) != 0 {
		t.Errorf("a verb past the device: status %d", st)
	}
	const most = 8 + mostPeeks
	for i := range uint64(most + 1) {
		r := n.rights()
		r.life += i
		st, text := attach(t, c, attachNew, r, fmt.Sprint("life ", i))
		if want := i < most; (st == statusOK) != want ||
			!want && (st != statusFull || !strings.Contains(text, fmt.Sprint(most, " connections"))) {
			t.Errorf("connection %d: status %d, %q", i, st, text)
		}
	}
	d.mu.Lock()
	d.answer = make([]byte, maxOffer+1)
	d.mu.Unlock()
	if st, _ := attach(t, c, attachNew, n.rights(), "long"); st != statusFailed || d.connected("long") {
		t.Errorf("a device that says too much: status %d", st)
	}
	d.mu.Lock()
	d.fail = errors.New(strings.Repeat("why ", 200))
	d.mu.Unlock()
	if st, text := attach(t, c, attachNew, n.rights(), "fails"); st != statusFailed || len(text) != maxOffer {
		t.Errorf("a device that fails: status %d, %q", st, text)
	}
	r := n.rights()
	for name, f := range map[string][]byte{
		"an offer that is too long": frame(kindAttach, attachNew, 1,
			append(r.append(nil), make([]byte, maxOffer+8)...)),
		"no rights":              frame(kindAttach, attachNew, 1, make([]byte, 24)),
		"a question with a body": frame(kindServe, 0, 1, make([]byte, 8)),
	} {
		if h, body, err := say(n.call(t, forVerbs), f); err == nil {
			t.Errorf("%s: the node answers %+v, %q", name, h, body)
		}
		if h, body, err := say(n.call(t, forControl), f); err == nil {
			t.Errorf("%s, over control: the node answers %+v, %q", name, h, body)
		}
	}
}

// TestDeviceAndPool makes pools that a node's device does not fit, or does not take: the node takes
// another one.
func TestDeviceAndPool(t *testing.T) {
	d := newFakeDevice()
	for name, c := range map[string]struct {
		device Device
		fail   error
		fabric string
		want   error
	}{
		"no device":              {nil, nil, "fake", rdma.ErrNotSupported},
		"another kind":           {d, nil, "other", rdma.ErrNotSupported},
		"one that takes no more": {d, fmt.Errorf("locked: %w", rdma.ErrFull), "fake", rdma.ErrFull},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: 64 << 10, Device: c.device})
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			d.fail = c.fail
			o := Options{Addresses: []string{n.Addr()}, Fabric: c.fabric}
			if f, err := Create(o, Geometry{1, 32 << 10, 8, 0}, nil); !errors.Is(err, c.want) {
				t.Errorf("a pool is made (%v), want %v", err, c.want)
				f.Close()
			}
			d.fail = nil
			o.Fabric = ""
			if c.fail != nil {
				o.Fabric = c.fabric
			}
			f, err := Create(o, Geometry{1, 32 << 10, 8, 0}, nil)
			if err != nil {
				t.Fatal(err)
			}
			o.Fabric = "another"
			var other *OtherFabric
			if f, err := Open(o); !errors.As(err, &other) {
				t.Errorf("a pool is opened as one over another fabric (%v)", err)
				f.Close()
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAttachRing asks for connections to rings that there are not, of a device that has none.
func TestAttachRing(t *testing.T) {
	d := newFakeDevice()
	n := newRawNode(t, Config{Device: d})
	c, r := n.call(t, forVerbs), n.rights()
	to := string(ringTarget(rdma.RingAt(0, 3), 1))
	asks(t, c, ringOpen, r.ring(3, 1), statusNotSupported)
	for what, want := range map[int]status{
		attachRing + attachAsk: statusNoRing, attachRing + attachNew: statusNoRing, attachRing + attachEnd: statusOK,
	} {
		if st, text := attach(t, c, what, r, to+"an offer"); st != want || d.connected("an offer") {
			t.Errorf("attach frame for %d, to no ring: status %d, %q", what, st, text)
		}
	}
	if st, _ := attach(t, c, attachRing+attachNew, n.rightsOf(0), to); st != statusAccess {
		t.Errorf("a reader connects to a ring: status %d", st)
	}
	if _, _, err := say(c, frame(kindAttach, attachRing+attachNew, 1, r.append(nil))); err == nil {
		t.Error("an attach frame for no ring is answered")
	}
}

// fakeRings is a fake device with rings that nothing lands in.
type fakeRings struct{ *fakeDevice }

func (d fakeRings) Register(base unsafe.Pointer, size uint64) (Registration, error) {
	_, err := d.fakeDevice.Register(base, size)
	return d, err
}

func (d fakeRings) OpenRing(rdma.RingOptions, int) (DeviceRing, error) {
	return fakeRing{d.fakeDevice}, nil
}

type fakeRing struct{ d *fakeDevice }

func (fakeRing) Post([]rdma.Span) error { return nil }
func (fakeRing) Count() rdma.RingCount  { return rdma.RingCount{} }
func (fakeRing) Close()                 {}

func (r fakeRing) Connect(_ int, offer []byte) ([]byte, RingConn, error) {
	answer, c, err := r.d.Connect(offer, false)
	if err != nil {
		return nil, nil, err
	}
	return answer, fakeRingConn{c}, nil
}

type fakeRingConn struct{ DeviceConn }

func (fakeRingConn) Landed() (uint64, bool) { return 0, false }

// TestRingConns connects a process to rings as often as it may: there is no place for another
// connection to a ring, until one is ended, and all places for those to the node's memory.
func TestRingConns(t *testing.T) {
	d := fakeRings{newFakeDevice()}
	n := newRawNode(t, Config{Device: d})
	c, r := n.call(t, forVerbs), n.rights()
	to := string(ringTarget(rdma.RingAt(0, 3), 1))
	asks(t, c, ringOpen, r.ring(3, 1), statusOK)
	connect := func(i uint64) (status, string) {
		r := r
		r.life += i
		return attach(t, c, attachRing+attachNew, r, fmt.Sprint(to, "life ", i))
	}
	for i := range uint64(mostRingConns) {
		if st, text := connect(i); st != statusOK {
			t.Fatalf("connection %d: status %d, %q", i, st, text)
		}
	}
	if st, text := connect(mostRingConns); st != statusFull ||
		!strings.Contains(text, fmt.Sprint(mostRingConns, " connections to rings")) {
		t.Errorf("one connection more: status %d, %q", st, text)
	}
	if st, text := attach(t, c, attachNew, r, "memory"); st != statusOK {
		t.Errorf("connect to the memory: status %d, %q", st, text)
	}
	if st, text := attach(t, c, attachRing+attachEnd, r, to); st != statusOK || d.connected("life 0") {
		t.Errorf("end a connection: status %d, %q", st, text)
	}
	for i, want := range []status{statusOK, statusFull} {
		if st, text := connect(mostRingConns + uint64(i)); st != want {
			t.Errorf("connection %d in the place of one that was ended: status %d, %q", i, st, text)
		}
	}
}
