package rdmatest

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Where the workers of testFence write: busy and slow ones add to the first words of node 0, which
// are those that stays looks at; flags are on node 1.
var (
	flags   = rdma.At(1, 64) // workers that are at work
	behind  = rdma.At(1, 128)
	calling = rdma.At(1, 192)
)

// testFence fences off what workers of an earlier epoch have posted: one that posts without a
// pause, one that sleeps while its verbs fly, one that has posted nothing, and the master itself.
func testFence(t testing.TB, h Harness) {
	for range 10 {
		fence(t, h)
	}
}

func fence(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, serve)
	const epoch = 1
	burst := func(ep rdma.Endpoint) *rdma.Batch {
		b := ep.Batch()
		for i := range 20 {
			b.FetchAdd(rdma.At(0, uint64(i%2)*8), 1)
		}
		return b
	}
	busy := func(ep rdma.Endpoint) {
		fetchAdd(ep, flags, 1)
		err := error(nil)
		for until := ep.Now() + patience; err == nil && ep.Now() < until; {
			b := burst(ep)
			err = rdma.Do(ep, b, patience)
			b.Release()
		}
		rejoin(t, f, ep, err)
	}
	slow := func(ep rdma.Endpoint) {
		fetchAdd(ep, flags, 1)
		err := error(nil)
		for until := ep.Now() + patience; err == nil && ep.Now() < until; {
			b := burst(ep)
			if err = ep.Post(b); err == nil {
				ep.Sleep(30 * time.Microsecond)
				err = errors.Join(ep.Wait(b, rdma.All, patience), b.Err())
			}
			b.Release()
		}
		rejoin(t, f, ep, err)
	}
	idle := func(ep rdma.Endpoint) {
		fetchAdd(ep, flags, 1)
		await(t, f, ep, func(v rdma.View) bool { return v.Epoch == epoch && !v.Busy })
		_, err := fetchAdd(ep, rdma.At(0, 0), 1)
		rejoin(t, f, ep, err)
	}
	master := func(ep rdma.Endpoint) {
		for until := ep.Now() + patience; ep.Now() < until; {
			if n, err := load(ep, flags); err != nil || n == 3 {
				break
			}
		}
		ep.Sleep(100 * time.Microsecond)
		ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: epoch, Busy: true})
		if err := errors.Join(err, f.Fence(epoch)); err != nil || !ok {
			t.Errorf("fence: %v, %v", ok, err)
		}
		if _, err := load(ep, rdma.At(0, 0)); !errors.Is(err, rdma.ErrStale) {
			t.Errorf("the worker that fences is of the earlier epoch, too, but its READ ended in %v", err)
		}
		if v, err := ep.Join(); err != nil || v.Epoch != epoch || !v.Busy {
			t.Errorf("the master joins %+v, %v", v, err)
		}
		stays(t, ep)
		if ok, err := f.Advance(rdma.State{Epoch: epoch, Busy: true}, rdma.State{Epoch: epoch}); !ok || err != nil {
			t.Errorf("the view becomes idle: %v, %v", ok, err)
		}
	}
	h.Parallel(t, f, busy, slow, idle, master)
	expect(t, h, f, behind, 3) // workers that are opened later have joined
	expect(t, h, f, calling, 3)
}

// await waits for a view, without verbs.
func await(t testing.TB, f rdma.Fabric, ep rdma.Endpoint, ok func(v rdma.View) bool) {
	for until := ep.Now() + patience; !ok(f.View()); ep.Sleep(20 * time.Microsecond) {
		if ep.Now() > until {
			t.Errorf("the view is %+v", f.View())
			return
		}
	}
}

// rejoin checks that a worker was fenced off for no other reason than its epoch, stays so, and goes
// on once it joins.
func rejoin(t testing.TB, f rdma.Fabric, ep rdma.Endpoint, err error) {
	await(t, f, ep, func(v rdma.View) bool { return v.Epoch == 1 && !v.Busy })
	_, again := fetchAdd(ep, rdma.At(0, 0), 1)
	call := ep.Call(0, &rdma.Request{Proc: add, Arg: [6]uint64{0, 1}}, patience)
	for _, err := range []error{err, again, call} {
		if !errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrRevoked) {
			t.Errorf("client %d of the earlier epoch ended in %v", ep.Client(), err)
		}
	}
	v, err := ep.Join()
	if err != nil || v.Epoch != 1 || v.Busy || len(v.Members) != f.Nodes() {
		t.Errorf("client %d joins %+v: %v", ep.Client(), v, err)
	}
	if _, err := fetchAdd(ep, behind, 1); err != nil {
		t.Errorf("client %d has joined, but %v", ep.Client(), err)
	}
	if err := ep.Call(1, &rdma.Request{Proc: add, Arg: [6]uint64{calling.Offset(), 1}}, patience); err != nil {
		t.Errorf("client %d has joined, but its call ends in %v", ep.Client(), err)
	}
}

// testFenceOfJoined fences an epoch that all workers have joined: it hinders none of them.
func testFenceOfJoined(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	for epoch := range uint64(3) {
		if ok, err := f.Advance(rdma.State{Epoch: epoch}, rdma.State{Epoch: epoch + 1}); !ok || err != nil {
			t.Fatalf("advance to %d: %v, %v", epoch+1, ok, err)
		}
		worker := func(ep rdma.Endpoint) {
			for range 100 {
				if _, err := fetchAdd(ep, rdma.At(0, 0), 1); err != nil {
					t.Errorf("a worker that was opened in epoch %d: %v", epoch+1, err)
					return
				}
			}
		}
		h.Parallel(t, f, worker, worker, func(ep rdma.Endpoint) {
			for range 10 {
				if err := errors.Join(f.Fence(epoch), f.Fence(epoch+1)); err != nil {
					t.Error(err)
				}
				ep.Sleep(5 * time.Microsecond)
			}
		})
	}
	expect(t, h, f, rdma.At(0, 0), 600)
}

// testFenceAndOpen opens workers while epochs pass. Each adds to the word of the epoch in which it
// was opened: once the next one is fenced, that word stays as it is.
func testFenceAndOpen(t testing.TB, h Harness) {
	const epochs = 40
	f := h.New(t, 1, poolBytes, nil)
	at := func(epoch uint64) rdma.Addr { return rdma.At(0, 8*epoch) }
	opener := func(ep rdma.Endpoint) {
		for epoch := f.View().Epoch; epoch < epochs; epoch = f.View().Epoch {
			own, err := f.Open("late")
			for sure := f.View().Epoch == epoch; err == nil && sure; { // else it may have joined the next one
				_, err = fetchAdd(own, at(epoch), 1)
			}
			if err != nil && !errors.Is(err, rdma.ErrStale) {
				t.Errorf("a worker that was opened in epoch %d: %v", epoch, err)
				return
			}
			if err := own.Close(); err != nil {
				t.Error(err)
			}
			ep.Sleep(time.Microsecond)
		}
	}
	master := func(ep rdma.Endpoint) {
		var sums [epochs]uint64
		for epoch := range uint64(epochs) {
			ep.Sleep(30 * time.Microsecond)
			ok, err := f.Advance(rdma.State{Epoch: epoch}, rdma.State{Epoch: epoch + 1})
			err = errors.Join(err, f.Fence(epoch+1))
			_, joined := ep.Join()
			if err := errors.Join(err, joined); err != nil || !ok {
				t.Errorf("epoch %d: %v, %v", epoch+1, ok, err)
				return
			}
			sums[epoch], _ = load(ep, at(epoch))
		}
		for epoch, sum := range sums {
			if got, err := load(ep, at(uint64(epoch))); err != nil || got != sum {
				t.Errorf("the word of epoch %d was %d when the next one was fenced, and became %d (%v)", epoch, sum,
					got, err)
			}
		}
	}
	h.Parallel(t, f, opener, opener, master)
}
