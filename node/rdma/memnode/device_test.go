package memnode

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
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memcopy"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
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
func attach(t testing.TB, c net.Conn, what int, r transport.Rights, offer string) (transport.Status, string) {
	t.Helper()
	p := append(r.Append(nil), offer...)
	for len(p)%8 != 0 {
		p = append(p, 0)
	}
	h, body, err := say(c, frame(transport.KindAttach, what, 1, p))
	if err != nil || h.Kind != transport.KindAttach || h.Items > len(body) {
		t.Fatalf("%+v, %q, %v", h, body, err)
	}
	return h.Status, string(body[:h.Items])
}

// served asks for how long the node serves, and which epoch was fenced last.
func served(t testing.TB, c net.Conn) (time.Duration, uint64) {
	t.Helper()
	h, body, err := say(c, frame(transport.KindServe, 0, 1, nil))
	if err != nil || h.Status != transport.StatusOK || len(body) != transport.ServedBytes {
		t.Fatalf("%+v, %x, %v", h, body, err)
	}
	return time.Duration(binary.LittleEndian.Uint64(body)), binary.LittleEndian.Uint64(body[8:])
}

// TestDeviceConnects makes connections to a node's memory, and ends them.
func TestDeviceConnects(t *testing.T) {
	d := newFakeDevice()
	n := newRawNode(t, Config{Device: d})
	c := n.call(t, transport.ForVerbs)
	r := n.rights()
	if st, text := attach(t, c, control.AttachNew, r, "first"); st != transport.StatusOK || text != "welcome" ||
		!d.connected("first") {
		t.Errorf("status %d, %q", st, text)
	}
	if st, text := attach(t, c, control.AttachAsk, r, ""); st != transport.StatusOK || text != "" ||
		!d.connected("first") {
		t.Errorf("a client that asks: status %d, %q", st, text)
	}
	if st, _ := attach(t, c, control.AttachNew, r, "second"); st != transport.StatusOK || d.connected("first") ||
		!d.connected("second") {
		t.Errorf("the next one: status %d, %v", st, d.live)
	}
	other := n.rightsOf(2)
	if st, _ := attach(t, c, control.AttachNew, other, "other"); st != transport.StatusOK || !d.connected("second") ||
		!d.connected("other") {
		t.Errorf("another worker: status %d, %v", st, d.live)
	}
	if st, _ := attach(t, c, control.AttachNew, n.rightsOf(0), "look"); st != transport.StatusOK ||
		d.connected("look") ||
		!d.connected("look, read only") {
		t.Errorf("without an identity: status %d, %v", st, d.live)
	}
	if st, _ := attach(t, c, control.AttachEnd, r, ""); st != transport.StatusOK || d.connected("second") ||
		!d.connected("other") {
		t.Errorf("the end: status %d, %v", st, d.live)
	}
	if st, _ := attach(t, c, control.AttachEnd, r, ""); st != transport.StatusOK {
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
		change func(p *pool, r *transport.Rights)
		want   transport.Status
		had    bool // and its connection is ended
	}{
		"another key": {func(_ *pool, r *transport.Rights) { r.Key++ }, transport.StatusAccess, false},
		"the key of readers": {func(p *pool, r *transport.Rights) { r.Key = p.readKey }, transport.StatusAccess,
			false},
		"a client far beyond": {func(_ *pool, r *transport.Rights) { r.Client = 1<<16 - 1 }, transport.StatusAccess,
			false},
		"a life that is over": {func(p *pool, _ *transport.Rights) { p.revoked[1].Store(1) },
			transport.StatusRevoked, true},
		"an epoch that is": {func(p *pool, _ *transport.Rights) { p.fence.Store(5) }, transport.StatusStale, true},
		"a client that asks without one": {func(p *pool, r *transport.Rights) {
			p.revoked[2].Store(1)
			r.Client = 2
		}, transport.StatusRevoked, false},
	} {
		for _, what := range []int{control.AttachAsk, control.AttachNew, control.AttachEnd} {
			t.Run(fmt.Sprint(name, what), func(t *testing.T) {
				d := newFakeDevice()
				n := newRawNode(t, Config{Device: d})
				conn := n.call(t, transport.ForVerbs)
				r := n.rights()
				if st, _ := attach(t, conn, control.AttachNew, r, "had"); st != transport.StatusOK {
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
	c := n.call(t, transport.ForVerbs)
	if left, fence := served(t, c); left <= 0 || fence != 0 {
		t.Errorf("it serves for %v, of epoch %d", left, fence)
	}
	if st, _ := attach(t, c, control.AttachNew, n.rights(), "had"); st != transport.StatusOK {
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
			conn, r := n.call(t, transport.ForVerbs), n.rightsOf(2)
			r.Epoch = 1
			for side, r := range map[string]transport.Rights{"own": n.rights(), "other": r} {
				if st, _ := attach(t, conn, control.AttachNew, r, side); st != transport.StatusOK {
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
	if st, text := attach(t, plain.call(t, transport.ForVerbs), control.AttachNew, plain.rights(),
		"offer"); st != transport.StatusNotSupported ||
		!strings.Contains(text, "no device") {
		t.Errorf("a node without a device: status %d, %q", st, text)
	}
	d := newFakeDevice()
	n := newRawNode(t, Config{Device: d})
	c := n.call(t, transport.ForVerbs)
	if st := outcome(t, c, frame(transport.KindVerbs, 1, 1, faaOf(n.rights(),
		8))); st != transport.StatusNotSupported || n.word(8) != 0 {
		t.Errorf("a verb past the device: status %d", st)
	}
	const most = 8 + mostPeeks
	for i := range uint64(most + 1) {
		r := n.rights()
		r.Life += i
		st, text := attach(t, c, control.AttachNew, r, fmt.Sprint("life ", i))
		if want := i < most; (st == transport.StatusOK) != want ||
			!want && (st != transport.StatusFull || !strings.Contains(text, fmt.Sprint(most, " connections"))) {
			t.Errorf("connection %d: status %d, %q", i, st, text)
		}
	}
	d.mu.Lock()
	d.answer = make([]byte, control.MaxOffer+1)
	d.mu.Unlock()
	if st, _ := attach(t, c, control.AttachNew, n.rights(), "long"); st != transport.StatusFailed ||
		d.connected("long") {
		t.Errorf("a device that says too much: status %d", st)
	}
	d.mu.Lock()
	d.fail = errors.New(strings.Repeat("why ", 200))
	d.mu.Unlock()
	if st, text := attach(t, c, control.AttachNew, n.rights(), "fails"); st != transport.StatusFailed ||
		len(text) != control.MaxOffer {
		t.Errorf("a device that fails: status %d, %q", st, text)
	}
	r := n.rights()
	for name, f := range map[string][]byte{
		"an offer that is too long": frame(transport.KindAttach, control.AttachNew, 1,
			append(r.Append(nil), make([]byte, control.MaxOffer+8)...)),
		"no rights":              frame(transport.KindAttach, control.AttachNew, 1, make([]byte, 24)),
		"a question with a body": frame(transport.KindServe, 0, 1, make([]byte, 8)),
	} {
		if h, body, err := say(n.call(t, transport.ForVerbs), f); err == nil {
			t.Errorf("%s: the node answers %+v, %q", name, h, body)
		}
		if h, body, err := say(n.call(t, transport.ForControl), f); err == nil {
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
			o := control.Options{Addresses: []string{n.Addr()}, Fabric: c.fabric}
			if f, err := tcp.Create(o, control.Geometry{Nodes: 1, Memory: 32 << 10, Clients: 8},
				nil); !errors.Is(err, c.want) {
				t.Errorf("a pool is made (%v), want %v", err, c.want)
				f.Close()
			}
			d.fail = nil
			o.Fabric = ""
			if c.fail != nil {
				o.Fabric = c.fabric
			}
			f, err := tcp.Create(o, control.Geometry{Nodes: 1, Memory: 32 << 10, Clients: 8}, nil)
			if err != nil {
				t.Fatal(err)
			}
			o.Fabric = "another"
			var other *control.OtherFabric
			if f, err := tcp.Open(o); !errors.As(err, &other) {
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
	c, r := n.call(t, transport.ForVerbs), n.rights()
	to := string(control.RingTarget(rdma.RingAt(0, 3), 1))
	asks(t, c, control.RingOpen, ringOf(r, 3, 1), transport.StatusNotSupported)
	for what, want := range map[int]transport.Status{
		control.AttachRing + control.AttachAsk: transport.StatusNoRing,
		control.AttachRing + control.AttachNew: transport.StatusNoRing,
		control.AttachRing + control.AttachEnd: transport.StatusOK,
	} {
		if st, text := attach(t, c, what, r, to+"an offer"); st != want || d.connected("an offer") {
			t.Errorf("attach frame for %d, to no ring: status %d, %q", what, st, text)
		}
	}
	if st, _ := attach(t, c, control.AttachRing+control.AttachNew, n.rightsOf(0), to); st != transport.StatusAccess {
		t.Errorf("a reader connects to a ring: status %d", st)
	}
	if _, _, err := say(c, frame(transport.KindAttach, control.AttachRing+control.AttachNew, 1,
		r.Append(nil))); err == nil {
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

func (fakeRing) Count() rdma.RingCount { return rdma.RingCount{} }

func (fakeRing) Close() {}

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
	c, r := n.call(t, transport.ForVerbs), n.rights()
	to := string(control.RingTarget(rdma.RingAt(0, 3), 1))
	asks(t, c, control.RingOpen, ringOf(r, 3, 1), transport.StatusOK)
	connect := func(i uint64) (transport.Status, string) {
		r := r
		r.Life += i
		return attach(t, c, control.AttachRing+control.AttachNew, r, fmt.Sprint(to, "life ", i))
	}
	for i := range uint64(mostRingConns) {
		if st, text := connect(i); st != transport.StatusOK {
			t.Fatalf("connection %d: status %d, %q", i, st, text)
		}
	}
	if st, text := connect(mostRingConns); st != transport.StatusFull ||
		!strings.Contains(text, fmt.Sprint(mostRingConns, " connections to rings")) {
		t.Errorf("one connection more: status %d, %q", st, text)
	}
	if st, text := attach(t, c, control.AttachNew, r, "memory"); st != transport.StatusOK {
		t.Errorf("connect to the memory: status %d, %q", st, text)
	}
	if st, text := attach(t, c, control.AttachRing+control.AttachEnd, r, to); st != transport.StatusOK ||
		d.connected("life 0") {
		t.Errorf("end a connection: status %d, %q", st, text)
	}
	for i, want := range []transport.Status{transport.StatusOK, transport.StatusFull} {
		if st, text := connect(mostRingConns + uint64(i)); st != want {
			t.Errorf("connection %d in the place of one that was ended: status %d, %q", i, st, text)
		}
	}
}

// TestDeviceWithout opens what there is not where verbs go over a device.
func TestDeviceWithout(t *testing.T) {
	d := newRawNode(t, Config{Device: newFakeDevice()})
	w, err := d.fabric.Worker("worker")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Listen(rdma.BoxOptions{}); !errors.Is(err, rdma.ErrNotSupported) {
		t.Errorf("listen where verbs go over a device: %v", err)
	}
	if _, err := w.OpenRing(rdma.RingOptions{Number: 1}); !errors.Is(err, rdma.ErrNotSupported) {
		t.Errorf("a ring where verbs go over a device: %v", err)
	}
}
