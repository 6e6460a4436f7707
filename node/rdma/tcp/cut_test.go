package tcp_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// addByCall is a procedure that adds to a word.
func addByCall(m rdma.Memory, r *rdma.Request) error {
	r.Ret[0] = m.FetchAdd(r.Arg[0], 1)
	return nil
}

// tallies is how many words the run of verbs adds to.
const tallies = 4

// verbRun is one of each verb, in two batches, and a call. ok and unknown count, by word, what
// succeeded, and what may have landed or not.
func verbRun(ep rdma.Endpoint, ok, unknown *[tallies]uint64) (failed error) {
	count := func(word int, err error) {
		switch {
		case err == nil:
			ok[word]++
		default:
			unknown[word]++
			failed = err
		}
	}
	b := ep.Batch()
	first := b.FetchAdd(rdma.At(0, 0), 1)
	b.Write(rdma.At(0, 64), b.Alloc(40))
	b.Read(rdma.At(0, 128), 24)
	b.CompareSwap(rdma.At(0, 256), 0, 1)
	b.MaskedCompareSwap(rdma.At(0, 264), 0, ^uint64(0), 1, 1)
	last := b.FetchAdd(rdma.At(0, 8), 1)
	rdma.Do(ep, b, limit)
	count(0, first.Err)
	count(1, last.Err)
	b.Release()
	count(2, ep.Call(0, &rdma.Request{Arg: [6]uint64{16}}, limit))
	_, err := add(ep, 0, 24)
	count(3, err)
	return failed
}

// TestCutAtEveryByte cuts the connection for verbs after each number of bytes, in either direction:
// verbs succeed or end in ErrNodeDown, those that succeeded landed once, the others once at most,
// and none lands behind the reconnect. Without $FARKV_LONG it does so after each fourth number, and
// TestControlCutAtEveryByte after each eighth.
func TestCutAtEveryByte(t *testing.T) {
	t.Parallel()
	const parts = 8
	for _, way := range []int{up, down} {
		for part := range parts {
			t.Run(fmt.Sprintf("%s, part %d", [...]string{"up", "down"}[way], part), func(t *testing.T) {
				t.Parallel()
				step := parts * 4
				if long {
					step = parts
				}
				cutVerbs(t, way, part*step/parts, step)
			})
		}
	}
}

func cutVerbs(t *testing.T, way, from, step int) {
	f, proxies := behind(t, 1, lease, addByCall)
	p, ep := proxies[0], attach(t, f.Fabric, "cut")
	var ok, unknown, last [tallies]uint64
	for n := from; ; n += step {
		spent := p.spent()
		limited := p.limitNext(caller.verbs, way, n)
		eventually(t, "a new connection", func() bool { return limited() && !f.NodeDown(0) })
		err := verbRun(ep, &ok, &unknown)
		if !downOrNil(err) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
		eventually(t, "the connection after that", func() bool { return !f.NodeDown(0) })
		for i := range last {
			now, err := load(ep, 0, uint64(8*i))
			if errors.Is(err, rdma.ErrNodeDown) { // it was about to be cut
				eventually(t, "the connection after that", func() bool { return !f.NodeDown(0) })
				now, err = load(ep, 0, uint64(8*i))
			}
			if err != nil || now < ok[i] || now > ok[i]+unknown[i] {
				t.Fatalf("cut after %d bytes: word %d is %d (%v): %d succeeded, %d may have", n, i,
					now, err, ok[i], unknown[i])
			}
			last[i] = now
			unknown[i], ok[i] = 0, now // what had not landed by now must never land
		}
		if p.spent() == spent { // the connection was not cut any more
			if n < 300 || err != nil {
				t.Fatalf("a run was through after %d bytes: %v", n, err)
			}
			return
		}
	}
}

// TestControlCutAtEveryByte cuts the connection for control, likewise. What the registry says is
// what was done, or one more step with an outcome that was not reported. No identity is lost.
func TestControlCutAtEveryByte(t *testing.T) {
	t.Parallel()
	const parts = 8
	for _, way := range []int{up, down} {
		for part := range parts {
			t.Run(fmt.Sprintf("%s, part %d", [...]string{"up", "down"}[way], part), func(t *testing.T) {
				t.Parallel()
				step := parts * 8
				if long {
					step = parts
				} else if teeth.UnderRace {
					step *= 4
				}
				cutControl(t, way, part*step/parts, step)
			})
		}
	}
}

func cutControl(t *testing.T, way, from, step int) {
	_, addrs := start(t, 1, 4096, nil)
	p := newProxy(t, addrs[0])
	f := created(t, control.Options{Addresses: []string{p.addr()}},
		control.Geometry{Nodes: 1, Memory: 4096, Clients: 3})
	keeper := attach(t, f, "keeper")
	for n := from; ; n += step {
		spent := p.spent()
		limited := p.limitNext(func(c caller) bool { return c.Purpose == "control" }, way, n)
		eventually(t, "a new connection", limited)
		controlRun(t, f, keeper, n)
		if p.spent() == spent {
			if n < 300 {
				t.Fatalf("a run was through after %d bytes", n)
			}
			break
		}
	}
	eventually(t, "no identity is left but the keeper's", func() bool { // each Open gives back what could not be before
		ep, err := f.Open("last")
		return err == nil && ep.Close() == nil && len(f.Clients()) == 1
	})
}

// controlRun changes the view, claims an identity, gives it back.
func controlRun(t *testing.T, f *tcp.Fabric, keeper rdma.Endpoint, n int) {
	view := func() (v rdma.View) {
		eventually(t, "the view", func() bool { w, err := keeper.Join(); v = w; return err == nil })
		return v
	}
	before := view()
	ok, err := f.Advance(rdma.State{Epoch: before.Epoch}, rdma.State{Epoch: before.Epoch + 1})
	if !ok && err == nil {
		t.Fatalf("cut after %d bytes: the view is not in epoch %d any more, and no other process advances it", n,
			before.Epoch)
	}
	if ep, err := f.Open("cut"); err == nil {
		_ = ep.Close() // when it fails, the next Open does it
	}
	if grown := view().Epoch - before.Epoch; ok && grown != 1 || grown > 1 {
		t.Fatalf("cut after %d bytes: the epoch was %d and is %d more; advanced: %v, %v", n, before.Epoch, grown, ok,
			err)
	}
}
