package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// BenchmarkRoundTrip compares a message and one back, and a call and its answer, with the same
// bytes by bare SENDs and RECVs: the same queue pairs, and the same way to wait, without anything
// around them. A call has 16 bytes more.
func BenchmarkRoundTrip(b *testing.B) {
	for _, n := range []int{64, 1024} {
		b.Run(fmt.Sprint("bare/", n+16), func(b *testing.B) { bareRoundTrips(b, n+16) })
		b.Run(fmt.Sprint("message/", n+16), func(b *testing.B) { messageRoundTrips(b, n+16) })
		b.Run(fmt.Sprint("call/", n), func(b *testing.B) { callRoundTrips(b, n) })
	}
}

// bare is an end of two connections, one for each direction.
type bare struct {
	b         testing.TB
	cq, rq    completions
	into      receives
	out, in   pair
	mem       memory
	memory    []byte // what is sent, and behind it the buffers
	n, flying int
	found     [16]completion
	requests  [1]request
	groups    [1]group
}

const bareBuffers = 16

func newBare(b testing.TB, a adapter, n int) *bare {
	e := &bare{b: b, n: n, memory: make([]byte, (1+bareBuffers)*n)}
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	var err error
	e.cq, err = a.completions(2 * sendDepth)
	must(err)
	e.rq, err = e.cq.beside(bareBuffers)
	must(err)
	e.into, err = a.receives(bareBuffers)
	must(err)
	e.mem, err = a.register(unsafe.Pointer(unsafe.SliceData(e.memory)), uint64(len(e.memory)), false)
	must(err)
	e.out, err = e.cq.pair(sendDepth, accessNone)
	must(err)
	e.in, err = e.into.pair(e.rq, accessNone)
	must(err)
	for i := range bareBuffers {
		e.release(i)
	}
	return e
}

func (e *bare) release(i int) {
	key, _ := e.mem.keys()
	if err := e.into.post(uint64(i), e.memory[(1+i)*e.n:][:e.n], key); err != nil {
		e.b.Error(err)
	}
}

func (e *bare) send(inline int) {
	key, _ := e.mem.keys()
	e.requests[0] = request{
		local: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(e.memory)))), n: uint32(e.n), key: key,
		op: uint8(rdma.Send), flags: flagSignal,
	}
	if e.n <= inline {
		e.requests[0].flags |= flagInline
	}
	e.groups[0] = group{pair: e.out.handle(), n: 1}
	e.cq.post(e.groups[:], e.requests[:])
	e.flying++
}

// look takes completions, and returns the buffer of a message that came; -1: none did.
func (e *bare) look() int {
	e.flying -= e.cq.poll(e.found[:], 0)
	if e.rq.poll(e.found[:1], 0) > 0 {
		return int(e.found[0].id)
	}
	return -1
}

// next waits for a message as Mailbox.Await does.
func (e *bare) next() int {
	for {
		for until := realtime.Now() + defaultSpin; ; {
			if i := e.look(); i >= 0 {
				return i
			}
			if realtime.Now() >= until {
				break
			}
		}
		if err := e.cq.arm(); err != nil {
			e.b.Error(err)
		}
		if i := e.look(); i >= 0 {
			return i
		}
		if err := e.cq.await(realtime.Now() + sliceMax); err != nil {
			e.b.Error(err)
		}
	}
}

func (e *bare) close() error {
	return errors.Join(e.out.close(), e.in.close(), e.into.close(), e.rq.close(), e.cq.close(), e.mem.close())
}

func bareRoundTrips(b *testing.B, n int) {
	devices := newAdapters(b)
	a, c := devices.open(), devices.open()
	near, far := newBare(b, a, n), newBare(b, c, n)
	for _, err := range []error{
		near.out.connect(far.in.card()), far.in.connect(near.out.card()),
		far.out.connect(near.in.card()), near.in.connect(far.out.card()),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
	var over atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		for {
			i := far.next()
			if over.Load() {
				return
			}
			far.send(c.limits().inline)
			far.release(i)
		}
	})
	for b.Loop() {
		near.send(a.limits().inline)
		near.release(near.next())
		for near.flying > 0 {
			near.look()
		}
	}
	over.Store(true)
	near.send(a.limits().inline)
	group.Wait()
	if err := errors.Join(near.close(), far.close(), a.close(), c.close()); err != nil {
		b.Error(err)
	}
}

// two runs a server with an endpoint of its own beside a client.
func two(b *testing.B, server, client func(ep rdma.Endpoint)) {
	p := newPool(b, shape{nodes: 1})
	rdmatest.Goroutines(b, p, server, client)
}

func messageRoundTrips(b *testing.B, n int) {
	open := func(ep rdma.Endpoint, o rdma.BoxOptions) rdma.Mailbox {
		box, err := rdma.Listen(ep, o)
		if err != nil {
			b.Error(err)
		}
		return box
	}
	next := func(box rdma.Mailbox) *rdma.Message {
		for {
			if m := box.Next(); m != nil {
				return m
			}
			if err := box.Await(testPatience); err != nil {
				b.Error(err)
				return nil
			}
		}
	}
	post := func(ep rdma.Endpoint, to rdma.BoxAddr, n int) *rdma.Batch {
		batch := ep.Batch()
		batch.Send(to, batch.Alloc(n))
		if err := ep.Post(batch); err != nil {
			b.Error(err)
		}
		return batch
	}
	two(b, func(ep rdma.Endpoint) {
		box := open(ep, rdma.BoxOptions{Node: 0, Number: 7})
		for {
			m := next(box)
			if m == nil || len(m.Data) == 0 {
				return
			}
			post(ep, m.From, len(m.Data)).Release()
			box.Release(m)
		}
	}, func(ep rdma.Endpoint) {
		box := open(ep, rdma.BoxOptions{Node: rdma.All})
		to := rdma.BoxAt(0, 7)
		for err := error(rdma.ErrNoBox); errors.Is(err, rdma.ErrNoBox); ep.Sleep(time.Millisecond) {
			batch := post(ep, to, n)
			err = errors.Join(ep.Wait(batch, rdma.All, testPatience), batch.Err())
			batch.Release()
		}
		box.Release(next(box))
		for b.Loop() {
			batch := post(ep, to, n)
			m := next(box)
			if m == nil {
				return
			}
			box.Release(m)
			if err := errors.Join(ep.Wait(batch, rdma.All, testPatience), batch.Err()); err != nil {
				b.Error(err)
				return
			}
			batch.Release()
		}
		ep.Wait(post(ep, to, 0), rdma.All, testPatience)
	})
}

func callRoundTrips(b *testing.B, n int) {
	open := func(ep rdma.Endpoint, o rpc.Options) *rpc.Peer {
		p, err := rpc.Open(ep, o)
		if err != nil {
			b.Error(err)
		}
		return p
	}
	two(b, func(ep rdma.Endpoint) {
		p := open(ep, rpc.Options{Box: rdma.BoxOptions{Node: 0, Number: 7}})
		for {
			switch r, err := p.Next(testPatience); {
			case err != nil || r != nil && r.Proc == 0:
				return
			case r != nil:
				r.Answer(0, r.Body)
			}
		}
	}, func(ep rdma.Endpoint) {
		p := open(ep, rpc.Options{})
		to, body := rdma.BoxAt(0, 7), make([]byte, n)
		call := func() error {
			c, err := p.Call(to, 1, testPatience, body)
			if err == nil {
				c.Release()
			}
			return err
		}
		for err := call(); errors.Is(err, rdma.ErrNoBox); err = call() {
			ep.Sleep(time.Millisecond)
		}
		for b.Loop() {
			if err := call(); err != nil {
				b.Error(err)
				return
			}
		}
		p.Start(to, 0, testPatience, nil)
	})
}
