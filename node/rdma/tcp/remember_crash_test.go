package tcp_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memcopy"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// disk is a medium that lets a test look at what a loss of power leaves, before each Sync.
type disk struct {
	m, synced []byte
	before    func(crashed []byte)
	rnd       *rand.Rand
}

func (d *disk) Zero(uint64, uint64) (bool, error) { return false, nil }

func (d *disk) Close() error { return nil }

// Sync is not called twice at a time.
func (d *disk) Sync() error {
	if d.before != nil {
		p := append([]byte(nil), d.synced...)
		odds := d.rnd.IntN(5)
		for at := 0; at < len(p); at += 8 {
			if d.rnd.IntN(4) < odds {
				memcopy.Load(p[at:at+8], unsafe.Pointer(&d.m[at]))
			}
		}
		d.before(p)
	}
	memcopy.Load(d.synced, unsafe.Pointer(unsafe.SliceData(d.m)))
	return nil
}

// newDisk maps a disk of that content, or an empty one.
func newDisk(t *testing.T, o pmem.Options, content []byte) *disk {
	t.Helper()
	d := &disk{rnd: rand.New(rand.NewPCG(1, 2))}
	for _, p := range []*[]byte{&d.m, &d.synced} {
		m, err := unix.Mmap(-1, 0, int(o.Bytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(m) })
		copy(m, content)
		*p = m
	}
	return d
}

// crashing is a node with a medium that is looked at before each Sync, with what its clients were
// answered.
type crashing struct {
	t                            *testing.T
	o                            pmem.Options
	sealed                       atomic.Bool
	added, called, epoch, fenced atomic.Uint64
	config                       atomic.Uint64 // its version
	appended                     atomic.Uint64
	images                       [][]byte
}

// listen starts a node on a disk.
func (c *crashing) listen(d *disk) *memnode.Node {
	c.t.Helper()
	r, err := pmem.On(d.m, d, c.o)
	if err != nil {
		c.t.Fatal(err)
	}
	n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: c.o.Memory, Region: r, Handler: addByCall})
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// look compares what a loss of power leaves with what was answered, which is no later.
func (c *crashing) look(crashed []byte) {
	t, base := c.t, c.o.Bytes()-c.o.Memory
	word := func(at uint64) uint64 { return memcopy.LoadWord((*uint64)(unsafe.Pointer(&crashed[base+at]))) }
	if word(0) < c.added.Load() || word(8) < c.called.Load() {
		t.Errorf("%d additions and %d calls are left of %d and %d", word(0), word(8), c.added.Load(), c.called.Load())
	}
	for i := range c.appended.Load() {
		if got := word(crashRing + i*rdma.Stride); got != i+1 {
			t.Errorf("of %d entries number %d is %d", c.appended.Load(), i+1, got)
		}
	}
	r, err := pmem.On(crashed, &disk{m: crashed, synced: make([]byte, len(crashed))}, c.o)
	if err != nil {
		t.Errorf("open what is left: %v", err)
		return
	}
	if c.sealed.Load() && r.Table().Get("pool") == nil {
		t.Error("the pool is forgotten")
	}
	var view membership.Promise
	var state struct{ Epoch uint64 }
	var config membership.Promise
	var is struct{ Version uint64 }
	var fence uint64
	for _, note := range []struct {
		key string
		to  any
	}{{"board/view", &view}, {"fence", &fence}, {"board/config", &config}} {
		if p := r.Table().Get(note.key); p != nil {
			err = errors.Join(err, json.Unmarshal(p, note.to))
		}
	}
	if p := view.State.Value; p != nil {
		err = errors.Join(err, json.Unmarshal(p, &state))
	}
	if p := config.State.Value; p != nil {
		err = errors.Join(err, json.Unmarshal(p, &is))
	}
	if is.Version < c.config.Load() {
		t.Errorf("version %d of the configuration is left of %d", is.Version, c.config.Load())
	}
	if err != nil || state.Epoch < c.epoch.Load() || fence < c.fenced.Load() {
		t.Errorf("epoch %d and fence %d are left of %d and %d: %v", state.Epoch, fence,
			c.epoch.Load(), c.fenced.Load(), err)
	}
	if len(c.images) < 200 {
		c.images = append(c.images, crashed)
	}
}

// crashRing is where the buffer of the ring begins.
const crashRing = 1024

// work has the view change, and verbs, calls and appends executed.
func (c *crashing) work(f *tcp.Fabric, ep rdma.Endpoint) {
	t := c.t
	t.Helper()
	role, ok, err := f.TryMaster(ep.Client(), 10*time.Second)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	ring, err := rdma.OpenRing(ep, rdma.RingOptions{Node: 0, Number: 1})
	if err == nil {
		err = ring.Post(rdma.Span{Addr: rdma.At(0, crashRing), Len: 6 << 10})
	}
	if err != nil {
		t.Fatal(err)
	}
	for e := range uint64(10) {
		if ok, err := f.SwapConfig(role, e, bytes.Repeat([]byte{byte(e)}, 2000)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		c.config.Store(e + 1)
		busy := rdma.State{Epoch: e + 1, Busy: true}
		for _, s := range [][2]rdma.State{{{Epoch: e}, busy}, {busy, {Epoch: e + 1}}} {
			if ok, err := f.Advance(s[0], s[1]); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		c.epoch.Store(e + 1)
		if err := f.Fence(e + 1); err != nil {
			t.Fatal(err)
		}
		c.fenced.Store(e + 1)
		if _, err := ep.Join(); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if _, err := add(ep, 0, 0); err != nil {
				t.Fatal(err)
			}
			c.added.Add(1)
			if err := ep.Call(0, &rdma.Request{Arg: [6]uint64{8, 1}}, limit); err != nil {
				t.Fatal(err)
			}
			c.called.Add(1)
			b := ep.Batch()
			b.Append(ring.Addr(), binary.LittleEndian.AppendUint64(b.Alloc(8)[:0], c.appended.Load()+1))
			if err := rdma.Do(ep, b, limit); err != nil {
				t.Fatal(err)
			}
			c.appended.Add(1)
			b.Release()
		}
	}
}

// TestNoAnswerBeforeSync loses power before each Sync of a node's medium: what was answered is
// there, of verbs as of the registry, and a node that starts on it is the one that it was.
func TestNoAnswerBeforeSync(t *testing.T) {
	c := &crashing{t: t, o: pmem.Options{Memory: 16 << 10, Table: 1 << 20, Power: true}}
	d := newDisk(t, c.o, nil)
	n := c.listen(d)
	d.before = c.look
	f, err := tcp.Create(control.Options{Addresses: []string{n.Addr()}},
		control.Geometry{Nodes: 1, Memory: 8 << 10, Clients: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.sealed.Store(true)
	ep, err := f.Open("client")
	if err != nil {
		t.Fatal(err)
	}
	c.work(f, ep)
	info := n.Info()
	if err := errors.Join(ep.Close(), f.Close(), n.Close()); err != nil {
		t.Error(err)
	}
	if len(c.images) < 100 {
		t.Fatalf("%d syncs", len(c.images))
	}
	back, lives := 0, 0
	for at := len(c.images) % 10; at < len(c.images); at += 10 {
		again := c.listen(newDisk(t, c.o, c.images[at]))
		lives++
		if is := again.Info(); is.Pool != nil {
			back++
			if is.Pool.ID != info.Pool.ID || is.Incarnation != info.Incarnation || !is.Sealed ||
				is.Lease != rdma.Forever {
				t.Errorf("a node came back as %+v, was %+v", is, info)
			}
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	if back < lives/2 {
		t.Errorf("of %d lives only %d are in the pool", lives, back)
	}
}
