package rdmatest

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// testJoin joins what cannot be joined.
func testJoin(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		if v, err := ep.Join(); err != nil || v.Epoch != 0 || v.Busy {
			t.Errorf("the view of a new pool is %+v (%v)", v, err)
		}
		revoked, err := f.Open("revoked")
		if err != nil {
			t.Error(err)
			return
		}
		if err := f.Revoke(revoked.Client()); err != nil {
			t.Error(err)
		}
		if _, err := revoked.Join(); !errors.Is(err, rdma.ErrRevoked) {
			t.Errorf("a client that was fenced off joins: %v", err)
		}
		if _, err := fetchAdd(revoked, rdma.At(0, 0), 1); !errors.Is(err, rdma.ErrRevoked) {
			t.Errorf("a client that was fenced off has tried to join, and its FAA ends in %v", err)
		}
		if err := revoked.Close(); err != nil {
			t.Error(err)
		}
		if _, err := revoked.Join(); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("a closed endpoint joins: %v", err)
		}
	})
	expect(t, h, f, rdma.At(0, 0), 0)
}

// testAdvance lets workers advance the view as fast as they can: each state is replaced once.
func testAdvance(t testing.TB, h Harness) {
	const rounds = 100
	f := h.New(t, 1, poolBytes, nil)
	var won [workers][]uint64
	var fs []func(rdma.Endpoint)
	for w := range workers {
		fs = append(fs, func(ep rdma.Endpoint) {
			for range rounds {
				v := f.View()
				from := rdma.State{Epoch: v.Epoch, Busy: v.Busy}
				ok, err := f.Advance(from, rdma.State{Epoch: v.Epoch + 1})
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					won[w] = append(won[w], v.Epoch)
				}
				ep.Sleep(time.Microsecond)
			}
		})
	}
	h.Parallel(t, f, fs...)
	all := slices.Concat(won[:]...)
	slices.Sort(all)
	for i, epoch := range all {
		if epoch != uint64(i) {
			t.Errorf("advances number %d from epoch %d", i, epoch)
			return
		}
	}
	if v := f.View(); v.Epoch != uint64(len(all)) || v.Epoch < rounds {
		t.Errorf("%d advances took the view to epoch %d", len(all), v.Epoch)
	}
	last := rdma.State{Epoch: f.View().Epoch}
	for _, back := range []rdma.State{{Epoch: last.Epoch - 1}, {Epoch: last.Epoch, Busy: true}, last} {
		if ok, err := f.Advance(last, back); ok || !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("%+v becomes %+v: %v, %v", last, back, ok, err)
		}
	}
}

// busyEpoch makes the view busy in the next epoch.
func busyEpoch(t testing.TB, f rdma.Fabric) uint64 {
	v := f.View()
	ok, err := f.Advance(rdma.State{Epoch: v.Epoch, Busy: v.Busy}, rdma.State{Epoch: v.Epoch + 1, Busy: true})
	if !ok || err != nil {
		t.Errorf("advance from %+v: %v, %v", v, ok, err)
	}
	return v.Epoch + 1
}

// testMembers lets workers compete for the same member, and tries what is no change of one.
func testMembers(t testing.TB, h Harness) {
	f := h.New(t, 3, poolBytes, nil)
	free, spare := rdma.Member{}, rdma.Member{Replaces: 1, Since: 1}
	set := func(what string, epoch uint64, node int, from, to rdma.Member, want bool) {
		t.Helper()
		before := f.View()
		ok, err := f.SetMember(epoch, node, from, to)
		after := f.View().Members
		if ok != want || err != nil || !want && !slices.Equal(after, before.Members) || want && after[node] != to {
			t.Errorf("%s: %v, %v; the members are %v", what, ok, err, after)
		}
	}
	set("an idle view", 0, 2, free, rdma.Member{Gone: true}, false)
	epoch := busyEpoch(t, f)
	set("an earlier epoch", epoch-1, 2, free, rdma.Member{Gone: true}, false)
	set("a later epoch", epoch+1, 2, free, rdma.Member{Replaces: 1, Since: epoch + 1}, false)
	set("another state", epoch, 2, rdma.Member{Gone: true}, rdma.Member{Gone: true, Since: epoch}, false)
	var won [workers]int
	var fs []func(rdma.Endpoint)
	for w := range workers {
		fs = append(fs, func(ep rdma.Endpoint) {
			for stands := range uint16(10) {
				mine := rdma.Member{Replaces: 1 + uint16(w) + workers*stands, Since: epoch}
				if ok, err := f.SetMember(epoch, 1, free, mine); err != nil {
					t.Error(err)
				} else if ok {
					won[w]++
					if got := f.View().Members[1]; got != mine {
						t.Errorf("node 1 %v, not %v", got, mine)
					}
				}
			}
		})
	}
	h.Parallel(t, f, fs...)
	if n := won[0] + won[1] + won[2] + won[3]; n != 1 {
		t.Errorf("%d workers changed the same state of a member", n)
	}
	set("a place is taken", epoch, 2, free, spare, true)
	set("twice", epoch, 2, free, spare, false)
	set("a stand-in is gone", epoch, 2, spare, rdma.Member{Gone: true, Replaces: 1, Since: 1}, true)
	for _, to := range []rdma.Member{spare, {Gone: true, Replaces: 2, Since: 1},
		{Gone: true, Replaces: 1, Since: 7}} {
		if ok, err := f.SetMember(epoch, 2, f.View().Members[2], to); ok || !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("a node that is gone now %v: %v, %v", to, ok, err)
		}
	}
	if ok, err := f.SetMember(epoch, 3, free, spare); ok || !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("a node that the pool does not have: %v, %v", ok, err)
	}
}

// testViews has a master change two members in each epoch, the first always first, while others
// look: what they see was so at one moment, and an idle view is complete.
func testViews(t testing.TB, h Harness) {
	const epochs = 20
	f := h.New(t, 2*epochs, 4096, nil)
	var over atomic.Bool // how long it takes is the fabric's business
	master := func(ep rdma.Endpoint) {
		defer over.Store(true)
		for range epochs {
			epoch := busyEpoch(t, f)
			for i := range 2 {
				to := rdma.Member{Replaces: uint16(epoch), Since: epoch}
				if ok, err := f.SetMember(epoch, 2*int(epoch-1)+i, rdma.Member{}, to); !ok || err != nil {
					t.Errorf("member in epoch %d: %v, %v", epoch, ok, err)
				}
			}
			if ok, err := f.Advance(rdma.State{Epoch: epoch, Busy: true}, rdma.State{Epoch: epoch}); !ok || err != nil {
				t.Errorf("epoch %d becomes idle: %v, %v", epoch, ok, err)
			}
			ep.Sleep(5 * time.Microsecond)
		}
	}
	looker := func(ep rdma.Endpoint) {
		for last := false; !last; ep.Sleep(time.Microsecond) {
			last = over.Load()
			v, err := ep.Join()
			if err != nil {
				t.Error(err)
				return
			}
			n := 0
			for n < len(v.Members) &&
				v.Members[n] == (rdma.Member{Replaces: uint16(n/2 + 1), Since: uint64(n/2 + 1)}) {
				n++
			}
			rest := slices.ContainsFunc(v.Members[n:], func(m rdma.Member) bool { return m != rdma.Member{} })
			least := 2 * int(v.Epoch)
			if v.Busy {
				least -= 2
			}
			if rest || n < least || n > 2*int(v.Epoch) {
				t.Errorf("a view that never was: %+v", v)
				return
			}
			if v.Epoch == epochs && !v.Busy {
				return
			}
		}
		t.Errorf("the view is still %+v", f.View())
	}
	h.Parallel(t, f, master, looker, looker)
}

// testExpel expels a node while workers use it: it is dead for all workers, those that are opened
// later too.
func testExpel(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, func(rdma.Memory, *rdma.Request) error { return nil })
	user := func(ep rdma.Endpoint) {
		err := error(nil)
		for until := ep.Now() + patience; err == nil && ep.Now() < until; {
			_, err = fetchAdd(ep, rdma.At(1, 0), 1)
		}
		dead(t, ep, err)
	}
	h.Parallel(t, f, user, user, func(ep rdma.Endpoint) {
		ep.Sleep(time.Millisecond)
		if err := f.Expel(0, 0); !errors.Is(err, rdma.ErrStale) {
			t.Errorf("expelled in an idle epoch: %v", err)
		}
		if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
			t.Error(ok, err)
		}
		if err := f.Expel(0, 0); !errors.Is(err, rdma.ErrStale) {
			t.Errorf("expelled in an epoch that is over: %v", err)
		}
		if err := f.Expel(1, 1); err != nil {
			t.Error(err)
		}
		_, err := load(ep, rdma.At(1, 0))
		dead(t, ep, err)
		if err := f.Expel(1, 1); err != nil {
			t.Errorf("expelled twice: %v", err)
		}
		if err := f.Expel(1, 2); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("expel a node that the pool does not have: %v", err)
		}
	})
	one(t, h, f, func(ep rdma.Endpoint) {
		_, err := load(ep, rdma.At(1, 0))
		dead(t, ep, err)
	})
	if m := f.View().Members[1]; m != (rdma.Member{}) {
		t.Errorf("the view changes by itself: node 1 %v", m)
	}
}

// dead checks that a worker is told that node 1 is down, and node 0 is not.
func dead(t testing.TB, ep rdma.Endpoint, err error) {
	_, again := fetchAdd(ep, rdma.At(1, 0), 1)
	call := ep.Call(1, &rdma.Request{}, patience)
	for _, err := range []error{err, again, call} {
		if !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("client %d and the node that was expelled: %v", ep.Client(), err)
		}
	}
	if _, err := load(ep, rdma.At(0, 0)); err != nil {
		t.Errorf("client %d and the other node: %v", ep.Client(), err)
	}
}
