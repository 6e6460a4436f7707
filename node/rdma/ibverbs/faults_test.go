package ibverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// TestStatuses has the device fail the fourth of eight requests, none but the last of which would
// have a completion: those in front of it succeeded, it and those behind it did not. So it is when
// those behind it wait for room.
func TestStatuses(t *testing.T) {
	needsSoft(t)
	const unknown status = 99
	for _, st := range []status{
		statusRetries, statusNotReady, statusFlushed, statusAborted, unknown,
		statusLocalLength, statusLocalQP, statusProtection, statusBadRequest, statusRemoteAccess, statusRemoteOp,
	} {
		for _, depth := range []int{4, 64} {
			t.Run(fmt.Sprint(completion{status: st}.err(), depth), func(t *testing.T) { failing(t, st, depth) })
		}
	}
}

func failing(t *testing.T, st status, depth int) {
	p := newPool(t, shape{nodes: 1, own: Options{Depth: depth}})
	ep := worker(t, p.Fabric)
	mustAdd(t, ep, rdma.At(0, 512), 0)
	var seen atomic.Int32
	p.net.fail(func(*softPair, request) status {
		if seen.Add(1) == 4 {
			return st
		}
		return statusSuccess
	})
	b := ep.Batch()
	for i := range 8 {
		b.FetchAdd(rdma.At(0, uint64(8*i)), 7)
	}
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	want := rdma.ErrNodeDown
	if (completion{status: st}).strayed() {
		want = rdma.ErrAccess
	}
	ends(t, ep, b, want)
	p.net.fail(nil)
	for i := range 8 {
		if err := b.Op(i).Err; i < 3 && err != nil || i >= 3 && !errors.Is(err, want) {
			t.Errorf("op %d ended in %v", i, err)
		}
	}
	if err, text := b.Op(3).Err, (completion{status: st}).err().Error(); err == nil ||
		!strings.Contains(err.Error(), text) {
		t.Errorf("the op that failed says %q, not %q", err, text)
	}
	b.Release()
	if _, err := add(ep, rdma.At(0, 64)); want == rdma.ErrAccess && !errors.Is(err, want) ||
		want != rdma.ErrAccess && err != nil {
		t.Errorf("the worker goes on with %v", err)
	}
	other := worker(t, p.Fabric)
	for i := range 8 {
		if v := word(t, other, rdma.At(0, uint64(8*i))); v != map[bool]uint64{true: 7}[i < 3] {
			t.Errorf("word %d is %d", i, v)
		}
	}
}

// TestSilentDevice has a device complete nothing: verbs stay in flight, until the worker gives up
// or is fenced off.
func TestSilentDevice(t *testing.T) {
	needsSoft(t)
	for what, c := range map[string]struct {
		end  func(p *pool, ep *Endpoint) error
		want error
	}{
		"closed":  {func(_ *pool, ep *Endpoint) error { return ep.Close() }, rdma.ErrClosed},
		"revoked": {func(p *pool, ep *Endpoint) error { return p.Revoke(ep.Client()) }, rdma.ErrRevoked},
		"fenced":  {func(p *pool, _ *Endpoint) error { return errors.Join(p.advance(1), p.Fence(1)) }, rdma.ErrStale},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPool(t, shape{nodes: 1})
			ep := worker(t, p.Fabric)
			p.net.fail(func(*softPair, request) status { return silent })
			b := posted(t, ep, rdma.At(0, 8), 1)
			if err := ep.Wait(b, rdma.All, 30*time.Millisecond); !errors.Is(err, rdma.ErrTimeout) || b.Completed(0) {
				t.Fatalf("waiting for a silent device ends in %v, %v", err, b.Err())
			}
			if err := c.end(p, ep); err != nil {
				t.Fatal(err)
			}
			ends(t, ep, b, c.want)
		})
	}
}

// advance changes the pool's epoch.
func (p *pool) advance(epoch uint64) error {
	from := p.View()
	ok, err := p.Advance(rdma.State{Epoch: from.Epoch, Busy: from.Busy}, rdma.State{Epoch: epoch})
	if err == nil && !ok {
		err = fmt.Errorf("epoch %d follows another one than %d", epoch, from.Epoch)
	}
	return err
}

// TestPartlyPosted has a queue pair take some of a post's requests: what it took has no completion,
// so that its outcome is unknown.
func TestPartlyPosted(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	ep := worker(t, p.Fabric)
	mustAdd(t, ep, rdma.At(0, 0), 0)
	var taken atomic.Int32
	room := func(*softPair, request) bool { return taken.Add(1) <= 2 }
	p.net.room.Store(&room)
	b := ep.Batch()
	for i := range 5 {
		b.FetchAdd(rdma.At(0, uint64(8*i)), 1)
	}
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	ends(t, ep, b, rdma.ErrNodeDown)
	if err := b.Err(); !strings.Contains(err.Error(), "took 2 of 5 work requests: cannot allocate memory") {
		t.Errorf("it says %q", err)
	}
	p.net.room.Store(nil)
	mustAdd(t, ep, rdma.At(0, 4*8), 0)
	mustAdd(t, ep, rdma.At(0, 4*8), 1)
	none := func(*softPair, request) bool { return false }
	p.net.room.Store(&none)
	if err := p.Revoke(ep.Client()); err != nil {
		t.Fatal(err)
	}
	b = posted(t, ep, rdma.At(0, 8), 1)
	ends(t, ep, b, rdma.ErrRevoked)
}

// TestForgottenEndpoint leaves an endpoint open with verbs in flight, and to the collector: its
// memory goes to no other use.
func TestForgottenEndpoint(t *testing.T) {
	needsDevice(t)
	p := newPool(t, shape{nodes: 1})
	mustAdd(t, worker(t, p.Fabric), rdma.At(0, 8), 0)
	func() {
		ep, err := p.Fabric.Open("forgotten")
		if err != nil {
			t.Fatal(err)
		}
		posted(t, ep, rdma.At(0, 16), 5)
	}()
	for range 5 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	mustAdd(t, worker(t, p.Fabric), rdma.At(0, 8), 1)
}

// TestDepths posts far more than queue pairs hold, of every length, over the place where numbers
// begin anew.
func TestDepths(t *testing.T) {
	for depth, want := range map[int]int{1: 1, 2: 2, 3: 2, 48: 32, 1 << 20: 0} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			p := newPool(t, shape{nodes: 3, memory: 8 << 20, own: Options{Depth: depth}})
			if got := p.o.Depth; got&(got-1) != 0 || want > 0 && got != want || got > depth {
				t.Errorf("a queue pair has room for %d", got)
			}
			ep := worker(t, p.Fabric)
			for i := range ep.peers {
				q := &ep.peers[i]
				q.head, q.ripe, q.tail = 1<<32-40, 1<<32-40, 1<<32-40
			}
			for round := range 3 {
				manyVerbs(t, ep, uint64(round))
			}
			for i := range ep.peers {
				if n := cap(ep.peers[i].waiting); n > 4096 {
					t.Errorf("a queue for 200 verbs has grown to %d", n)
				}
			}
		})
	}
}

func manyVerbs(t *testing.T, ep rdma.Endpoint, round uint64) {
	b := ep.Batch()
	defer b.Release()
	big := b.Alloc(3<<20 + 5)
	for i := range big {
		big[i] = byte(i>>20) + byte(i) + byte(round)
	}
	b.Write(rdma.At(1, 1<<20), big)
	back := b.Read(rdma.At(1, 1<<20), len(big))
	none, nothing := b.Read(rdma.At(0, 8<<20), 0), b.Write(rdma.At(2, 8<<20), nil)
	for i := range 200 {
		b.FetchAdd(rdma.At(i%3, 8), 1)
	}
	if err := rdma.Do(ep, b, testPatience); err != nil {
		t.Fatal(err)
	}
	for i := range back.Buf {
		if back.Buf[i] != big[i] {
			t.Fatalf("round %d: byte %d is %d, was written as %d", round, i, back.Buf[i], big[i])
		}
	}
	if none.Err != nil || nothing.Err != nil {
		t.Errorf("verbs of no bytes: %v, %v", none.Err, nothing.Err)
	}
	for i := range 200 {
		if got := b.Op(4 + i).Result; got != round*uint64((202-i%3)/3)+uint64(i/3) {
			t.Errorf("round %d: FAA %d found %d", round, i, got)
		}
	}
}

// TestBacklog keeps more in flight than a queue pair holds, without end: what waits does not grow.
func TestBacklog(t *testing.T) {
	p := newPool(t, shape{nodes: 1, own: Options{Depth: 2}})
	ep := worker(t, p.Fabric)
	post := func() *rdma.Batch {
		b := ep.Batch()
		for range 8 {
			b.FetchAdd(rdma.At(0, 0), 1)
		}
		if err := ep.Post(b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	old := post()
	for range 500 {
		next := post()
		ends(t, ep, old, nil)
		old.Release()
		old = next
	}
	ends(t, ep, old, nil)
	old.Release()
	if n := cap(ep.peers[0].waiting); n > 256 {
		t.Errorf("a queue for 16 verbs has grown to %d", n)
	}
}

// TestNoMemoryForParts has the device take no more memory in the midst of an op: the op ends when
// what is in flight of it does.
func TestNoMemoryForParts(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1, memory: 8 << 20})
	ep := worker(t, p.Fabric)
	warm := ep.Batch()
	warm.Read(rdma.At(0, 0), 2<<20) // two stages stay
	if err := rdma.Do(ep, warm, testPatience); err != nil {
		t.Fatal(err)
	}
	warm.Release()
	p.net.full.Store(true)
	gate := make(chan struct{})
	p.net.fail(func(*softPair, request) status { <-gate; return statusSuccess })
	b := ep.Batch()
	b.Read(rdma.At(0, 0), 4<<20)
	b.FetchAdd(rdma.At(0, 8), 1)
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	if b.Completed(0) {
		t.Error("an op is complete while parts of it are in flight")
	}
	b.Release()
	close(gate)
	p.net.full.Store(false)
	mustAdd(t, ep, rdma.At(0, 8), 0)
	again := ep.Batch()
	op := again.Read(rdma.At(0, 0), 4<<20)
	if err := rdma.Do(ep, again, testPatience); err != nil || len(op.Buf) != 4<<20 {
		t.Error(err)
	}
	again.Release()
}

func TestNoMemoryText(t *testing.T) {
	err := noMemory("mlx5_0", 1<<62, errors.ErrUnsupported)
	if !errors.Is(err, rdma.ErrFull) || !strings.Contains(err.Error(), "mlx5_0") {
		t.Errorf("%v", err)
	}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		t.Fatal(err)
	}
	err = noMemory("mlx5_0", 4096, unix.ENOMEM) // little, but maybe more than is left
	if hint := strings.Contains(err.Error(), "ulimit -l"); !errors.Is(err, rdma.ErrFull) ||
		hint != (l.Cur != unix.RLIM_INFINITY) {
		t.Errorf("with a limit of %d: %v", l.Cur, err)
	}
}

// TestRemoteAccess forges what the worker knows of a node's memory: the device refuses the verb,
// and the connection is down.
func TestRemoteAccess(t *testing.T) {
	for what, forge := range map[string]func(p *peer){
		"key":    func(p *peer) { p.key++ },
		"base":   func(p *peer) { p.base += 1 << 40 },
		"behind": func(p *peer) { p.base += 1 << 20 },
	} {
		t.Run(what, func(t *testing.T) {
			p := newPool(t, shape{nodes: 1})
			ep := worker(t, p.Fabric)
			mustAdd(t, ep, rdma.At(0, 0), 0)
			forge(&ep.peers[0])
			b := posted(t, ep, rdma.At(0, 8), 1)
			ends(t, ep, b, rdma.ErrAccess)
			if _, err := add(ep, rdma.At(0, 0)); !errors.Is(err, rdma.ErrAccess) {
				t.Errorf("behind it a verb ends in %v", err)
			}
			if got := word(t, worker(t, p.Fabric), rdma.At(0, 8)); got != 0 {
				t.Errorf("the word is %d", got)
			}
		})
	}
}

// TestReaders has a reader try to change memory: its own endpoint lets it, the device does not.
func TestReaders(t *testing.T) {
	p := newPool(t, shape{nodes: 1, security: transport.Security{Token: []byte("all"), ReadToken: []byte("some")}})
	mustAdd(t, worker(t, p.Fabric), rdma.At(0, 0), 0)
	o := control.Options{Addresses: p.addrs, Fabric: Name, Security: transport.Security{ReadToken: []byte("some")}}
	f, err := control.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	readers := newFabric(f, p.open(), Options{})
	closeAtEnd(t, readers)
	for what, try := range map[string]func(b *rdma.Batch){
		"write": func(b *rdma.Batch) { b.Write(rdma.At(0, 0), b.Alloc(8)) },
		"cas":   func(b *rdma.Batch) { b.CompareSwap(rdma.At(0, 0), 1, 9) },
		"faa":   func(b *rdma.Batch) { b.FetchAdd(rdma.At(0, 0), 9) },
	} {
		ep, other := worker(t, readers), worker(t, readers)
		if got := word(t, ep, rdma.At(0, 0)); got != 1 || ep.Client() != 0 {
			t.Errorf("client %d reads %d", ep.Client(), got)
		}
		b := ep.Batch()
		try(b)
		if err := ep.Post(b); err != nil {
			t.Fatal(err)
		}
		ends(t, ep, b, rdma.ErrAccess)
		if got := word(t, other, rdma.At(0, 0)); got != 1 {
			t.Errorf("behind a reader's %s the word is %d", what, got)
		}
	}
}

// TestRestartedNode replaces a node by one at the same address, with empty memory: it is not taken
// for the old one.
func TestRestartedNode(t *testing.T) {
	s := shape{nodes: 3, memory: 1 << 20, lease: 200 * time.Millisecond}
	p := newPool(t, s)
	ep := worker(t, p.Fabric)
	mustAdd(t, ep, rdma.At(1, 0), 0)
	at := p.nodes[1].Addr()
	if err := p.nodes[1].Close(); err != nil {
		t.Fatal(err)
	}
	start(t, p.adapters, &s, at)
	for until := realtime.Now() + 300*time.Millisecond; realtime.Now() < until; {
		if got, err := add(ep, rdma.At(1, 0)); !errors.Is(err, rdma.ErrNodeDown) {
			t.Fatalf("a node that has started anew says %d, %v", got, err)
		}
	}
	mustAdd(t, ep, rdma.At(0, 0), 0)
}

// TestClosedEndpoint uses an endpoint, and its batches, behind Close.
func TestClosedEndpoint(t *testing.T) {
	p := newPool(t, shape{nodes: 1})
	ep := worker(t, p.Fabric)
	unposted, b := ep.Batch(), posted(t, ep, rdma.At(0, 8), 1)
	unposted.Read(rdma.At(0, 0), 8)
	if err := errors.Join(ep.Close(), ep.Close()); err != nil {
		t.Fatal(err)
	}
	if err := ep.Wait(b, rdma.All, testPatience); err != nil || b.Err() != nil && !errors.Is(b.Err(), rdma.ErrClosed) {
		t.Errorf("%v, %v", err, b.Err())
	}
	if err := ep.Post(unposted); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("a post ends in %v", err)
	}
	if err := ep.Wait(unposted, rdma.All, testPatience); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("a wait for what was not posted ends in %v", err)
	}
	if _, err := ep.Join(); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("a join ends in %v", err)
	}
	ep.Sleep(time.Microsecond)
	b.Release()
	ep.Batch().Alloc(16)
}

// TestConnectionsAreGivenBack has more workers than a pool has clients come and go, each with a
// connection that broke: nodes keep none of theirs.
func TestConnectionsAreGivenBack(t *testing.T) {
	p := newPool(t, shape{nodes: 1})
	for range 150 {
		ep, err := p.Fabric.Open("passer-by")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := add(ep, rdma.At(0, 0)); err != nil {
			t.Fatal(err)
		}
		e := ep.(*Endpoint)
		e.drop(&e.peers[0], rdma.ErrNodeDown)
		if err := ep.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSilentBacklog fences a worker off that waits for a silent device with more than its queue
// pair holds.
func TestSilentBacklog(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1, own: Options{Depth: 2}})
	ep := worker(t, p.Fabric)
	p.net.fail(func(*softPair, request) status { return silent })
	b := ep.Batch()
	for range 9 {
		b.FetchAdd(rdma.At(0, 0), 1)
	}
	if err := errors.Join(ep.Post(b), p.Revoke(ep.Client())); err != nil {
		t.Fatal(err)
	}
	ends(t, ep, b, rdma.ErrRevoked)
	for i := range 9 {
		if err := b.Op(i).Err; !errors.Is(err, rdma.ErrRevoked) {
			t.Errorf("op %d ended in %v", i, err)
		}
	}
}

// TestStaleCompletions drops connections before their completions were looked for: they are not
// taken for those of the next connection, and there is room for those.
func TestStaleCompletions(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	ep := worker(t, p.Fabric)
	var last uint16 // of the connections' numbers
	for range 5 {
		last = ep.peers[0].times
		var batches []*rdma.Batch
		before := p.net.past.Load()
		p.net.fail(func(*softPair, request) status { return statusRetries })
		for range p.o.Depth {
			b := ep.Batch()
			b.FetchAdd(rdma.At(0, 0), 1)
			b.FetchAdd(rdma.At(0, 0), 1)
			batches = append(batches, b)
			if err := ep.Post(b); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the device has failed one", func() bool { return p.net.past.Load() > before })
		time.Sleep(2 * time.Millisecond) // for the rest to be flushed
		ep.drop(&ep.peers[0], rdma.ErrNodeDown)
		p.net.fail(nil)
		for _, b := range batches {
			ends(t, ep, b, rdma.ErrNodeDown)
			b.Release()
		}
	}
	mustAdd(t, ep, rdma.At(0, 0), 0)
	p.net.fail(func(*softPair, request) status { return silent })
	b, q := posted(t, ep, rdma.At(0, 8), 1), &ep.peers[0]
	for _, st := range []status{statusSuccess, statusFlushed} {
		if ep.landed(completion{id: uint64(last)<<32 | uint64(q.head), status: st}); b.Completed(0) ||
			q.ripe != q.head {
			t.Errorf("a completion (%d) of an earlier connection is taken", st)
		}
	}
}

// TestJoinLooks joins an epoch with connections of the last: they are used no more, nor are they
// where a fence was heard of.
func TestJoinLooks(t *testing.T) {
	p := newPool(t, shape{nodes: 1, lease: 100 * time.Millisecond})
	ep := worker(t, p.Fabric)
	mustAdd(t, ep, rdma.At(0, 0), 0)
	if err := p.advance(1); err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Join(); err != nil {
		t.Fatal(err)
	}
	if q := &ep.peers[0]; q.qp != nil {
		t.Errorf("a connection of epoch %d is used in epoch %d", q.epoch, ep.Epoch())
	}
	mustAdd(t, ep, rdma.At(0, 0), 1)
	if err := errors.Join(p.advance(2), p.Fence(2)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process hears of the fence", func() bool { _, fence := p.Served(0); return fence == 2 })
	ep.check(&ep.peers[0])
	if q := &ep.peers[0]; q.qp != nil {
		t.Errorf("a connection of epoch %d is used behind the fence of epoch 2", q.epoch)
	}
}

// TestUnfencedDevice has the worker keep fences for a device that does not: what is fenced is
// posted when the READs and atomics in front of it are over, however many parts and posts that
// takes, and not for a WRITE; and no fence is asked of the device.
func TestUnfencedDevice(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1, unfenced: true})
	ep := worker(t, p.Fabric)
	mustAdd(t, ep, rdma.At(0, 512), 0)
	p.net.slow.Store(int64(2 * time.Millisecond))
	before := p.net.past.Load()
	var posted []int64 // requests that were over, when each was posted
	check := func(_ *softPair, q request) bool {
		if q.flags&flagFence != 0 {
			t.Error("the device is to keep a fence")
		}
		posted = append(posted, p.net.past.Load()-before)
		return true
	}
	p.net.room.Store(&check)
	b := ep.Batch()
	b.Write(rdma.At(0, 64), b.Alloc(8)).Fence = true
	b.Write(rdma.At(0, 72), b.Alloc(8)).Fence = true
	b.FetchAdd(rdma.At(0, 0), 1)
	b.FetchAdd(rdma.At(0, 8), 1)
	read := b.Read(rdma.At(0, 0), 16)
	read.Fence = true
	b.Write(rdma.At(0, 80), b.Alloc(8))
	b.FetchAdd(rdma.At(0, 0), 1).Fence = true
	if err := rdma.Do(ep, b, testPatience); err != nil {
		t.Fatal(err)
	}
	p.net.room.Store(nil)
	if got := binary.NativeEndian.Uint64(read.Buf); got != 1 {
		t.Errorf("behind its fence a READ met %d", got)
	}
	for i, least := range []int64{0, 0, 0, 0, 4, 4, 5} {
		if len(posted) != 7 || posted[i] < least || i < 4 && posted[i] > 1 {
			t.Fatalf("of 7 requests each was posted when %v were over", posted)
		}
	}
}

// TestDeadDevice has a device that tells nothing of a verb, nor gives it up itself: the worker
// does, and goes on over another queue pair.
func TestDeadDevice(t *testing.T) {
	t.Parallel()
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	ep := worker(t, p.Fabric)
	p.net.fail(func(*softPair, request) status { return silent })
	b := posted(t, ep, rdma.At(0, 8), 1)
	ends(t, ep, b, rdma.ErrNodeDown)
	p.net.fail(nil)
	mustAdd(t, ep, rdma.At(0, 0), 0)
}
