package rdmatest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// tenure is what a master knows of its own: it began before latest, and lasted until end at least.
type tenure struct {
	epoch       uint64
	latest, end time.Duration
}

// testMaster has workers become master as often as they can, prolong that, and resign or not: there
// is never more than one, and epochs have the order of tenures.
func testMaster(t testing.TB, h Harness) {
	const rounds = 60
	f, lease := h.New(t, 1, poolBytes, nil), h.lease()
	var all [workers][]tenure
	var fs []func(rdma.Endpoint)
	for w := range workers {
		fs = append(fs, func(ep rdma.Endpoint) {
			for range rounds {
				r, ok, err := f.TryMaster(ep.Client(), lease)
				latest := ep.Now()
				if err != nil {
					t.Error(err)
					return
				}
				if !ok {
					ep.Sleep(lease / 4)
					continue
				}
				all[w] = append(all[w], reign(t, f, ep, r, latest, lease))
			}
		})
	}
	h.Parallel(t, f, fs...)
	tenures := slices.Concat(all[:]...)
	slices.SortFunc(tenures, func(a, b tenure) int { return int(int64(a.epoch) - int64(b.epoch)) })
	for i := 1; i < len(tenures); i++ {
		last, next := tenures[i-1], tenures[i]
		if next.epoch == last.epoch || next.latest < last.end {
			t.Errorf("two masters at a time: %+v, %+v", last, next)
		}
	}
	if len(tenures) < 2 {
		t.Errorf("there were %d masters in %d rounds", len(tenures), rounds)
	}
}

// reign is a tenure. Its owner never lets it run out without a word, which would cost it its
// identity.
func reign(t testing.TB, f rdma.Fabric, ep rdma.Endpoint, r rdma.Role, latest, lease time.Duration) tenure {
	if r.Owner != ep.Client() || r.Epoch == 0 || r.Until > latest+lease {
		t.Errorf("client %d is master as %+v, at %v", ep.Client(), r, latest)
	}
	mine := tenure{r.Epoch, latest, 0}
	for range ep.Rand().IntN(3) {
		ep.Sleep(lease / 8)
		longer, ok, err := f.Renew(r, lease)
		if err != nil || ok && (longer.Epoch != r.Epoch || longer.Owner != r.Owner || longer.Until < r.Until) {
			t.Errorf("%+v was prolonged as %+v, %v", r, longer, err)
		}
		if !ok { // it slept for longer than it wanted to
			mine.end = r.Until
			return mine
		}
		r = longer
	}
	mine.end = min(r.Until, ep.Now())
	f.Resign(r)
	return mine
}

// testRenew lets a tenure run out, and ends one early.
func testRenew(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		other, err := f.Open("other")
		if err != nil {
			t.Error(err)
			return
		}
		defer other.Close()
		const long = 10 * time.Second
		first, ok, err := f.TryMaster(ep.Client(), long)
		if !ok || err != nil {
			t.Errorf("first: %+v, %v, %v", first, ok, err)
		}
		if r, ok, err := f.TryMaster(other.Client(), long); ok || err != nil || r.Owner != ep.Client() ||
			r.Until < first.Until {
			t.Errorf("second, while there is one: %+v, %v, %v", r, ok, err)
		}
		longer, ok, err := f.Renew(first, 2*long)
		if !ok || err != nil || longer.Until <= first.Until {
			t.Errorf("prolonged: %+v, %v, %v", longer, ok, err)
		}
		f.Resign(first) // it is not that one any more
		if _, ok, _ := f.TryMaster(other.Client(), long); ok {
			t.Error("a tenure was ended by what it was before it was prolonged")
		}
		f.Resign(longer)
		second, ok, err := f.TryMaster(other.Client(), long)
		if !ok || err != nil || second.Epoch <= first.Epoch {
			t.Errorf("after the first resigned: %+v, %v, %v", second, ok, err)
		}
		if r, ok, err := f.Renew(longer, long); ok || err != nil || r.Owner != other.Client() {
			t.Errorf("a tenure that was ended is prolonged: %+v, %v, %v", r, ok, err)
		}
		f.Resign(longer)
		if r, ok, _ := f.TryMaster(ep.Client(), long); ok {
			t.Errorf("a tenure was ended by another's: %+v", r)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if r, ok, err := f.TryMaster(ep.Client(), long); !ok || err != nil || r.Epoch <= second.Epoch {
			t.Errorf("after the second was closed: %+v, %v, %v", r, ok, err)
		}
	})
}

// testLostMaster lets a master that posts all the time lose its role without noticing: none of its
// verbs lands once another one is master. One that resigned, or wins again, is not fenced off.
func testLostMaster(t testing.TB, h Harness) {
	f, lease := h.New(t, 2, poolBytes, serve), h.lease()
	lost := func(ep rdma.Endpoint) {
		ok, err := false, error(nil)
		// too slow for its lease on a busy machine
		for until := ep.Now() + patience; !ok && err == nil && ep.Now() < until; {
			_, ok, err = f.TryMaster(ep.Client(), lease)
		}
		if !ok || err != nil {
			t.Errorf("first: %v, %v", ok, err)
		}
		fetchAdd(ep, flags, 1)
		for until := ep.Now() + patience; err == nil && ep.Now() < until; {
			b := ep.Batch()
			for i := range 20 {
				b.FetchAdd(rdma.At(0, uint64(i%2)*8), 1)
			}
			err = rdma.Do(ep, b, patience)
			b.Release()
		}
		if !errors.Is(err, rdma.ErrRevoked) {
			t.Errorf("a master ended in %v after its tenure ran out", err)
		}
	}
	next := func(ep rdma.Endpoint) {
		for until := ep.Now() + patience; ep.Now() < until; {
			if n, err := load(ep, flags); err != nil || n == 1 {
				break
			}
		}
		r, ok, err := rdma.Role{}, false, error(nil)
		for until := ep.Now() + patience; !ok && err == nil && ep.Now() < until; ep.Sleep(lease / 4) {
			r, ok, err = f.TryMaster(ep.Client(), lease)
		}
		if !ok || err != nil {
			t.Errorf("second: %+v, %v, %v", r, ok, err)
		}
		stays(t, ep)
		ep.Sleep(2 * lease)
		if r, ok, err = f.TryMaster(ep.Client(), patience); !ok || err != nil {
			t.Errorf("again: %+v, %v, %v", r, ok, err)
		}
		f.Resign(r)
		third, err := f.Open("third")
		if err != nil {
			t.Error(err)
			return
		}
		if _, ok, err := f.TryMaster(third.Client(), patience); !ok || err != nil {
			t.Errorf("third: %v, %v", ok, err)
		}
		if err := third.Close(); err != nil {
			t.Error(err)
		}
		if _, err := fetchAdd(ep, rdma.At(1, 0), 1); err != nil {
			t.Errorf("a master that resigned in order is fenced off: %v", err)
		}
	}
	h.Parallel(t, f, lost, next)
}

// testForget forgets clients: only those that are gone, and none that followed.
func testForget(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	find := func(id rdma.ClientID) (rdma.Client, bool) {
		for _, c := range f.Clients() {
			if c.ID == id {
				return c, true
			}
		}
		return rdma.Client{}, false
	}
	one(t, h, f, func(ep rdma.Endpoint) {
		self, _ := find(ep.Client())
		if !self.Alive || !self.Held {
			t.Errorf("a live client is listed as %+v", self)
		}
		if err := f.Forget(self); !errors.Is(err, rdma.ErrHeld) {
			t.Errorf("a live client was forgotten: %v", err)
		}
		first := gone(t, f, ep, 0)
		c, listed := find(first)
		if !listed || c.Alive || c.Held {
			t.Errorf("a client that was fenced off and closed is listed as %+v", c)
		}
		for range 2 {
			if err := f.Forget(c); err != nil {
				t.Error(err)
			}
			if again, listed := find(first); listed {
				t.Errorf("a client that was forgotten is listed as %+v", again)
			}
		}
		attached, err := f.Open("attached")
		if err != nil {
			t.Error(err)
			return
		}
		if err := f.Revoke(attached.Client()); err != nil {
			t.Error(err)
		}
		if c, listed := find(attached.Client()); !listed || c.Alive || !c.Held {
			t.Errorf("a client that was fenced off, and has not closed, is listed as %+v", c)
		}
		if err := attached.Close(); err != nil {
			t.Error(err)
		}
		if attached.Client() == first {
			c, _ := find(first)
			if err := f.Forget(c); err != nil {
				t.Error(err)
			}
		}
		gone(t, f, ep, first)
		next, _ := find(first)
		if next.Life == c.Life {
			t.Errorf("a client has the life of the one before: %+v", next)
		}
		if err := f.Forget(c); err != nil {
			t.Error(err)
		}
		if _, listed := find(first); !listed {
			t.Error("a client was forgotten instead of the one before it")
		}
		if err := f.Forget(next); err != nil {
			t.Error(err)
		}
		if _, listed := find(first); listed {
			t.Error("a client was not forgotten")
		}
		if _, listed := find(ep.Client()); !listed {
			t.Error("another client was forgotten")
		}
	})
}

// gone returns a client that was fenced off and closed; with a wish, one of that identity.
func gone(t testing.TB, f rdma.Fabric, ep rdma.Endpoint, wish rdma.ClientID) rdma.ClientID {
	const most = 1 << 13 // identities may be used in turn
	for range most {
		own, err := f.Open("gone")
		if err != nil {
			t.Error(err)
			return 0
		}
		id := own.Client()
		if wish == 0 || id == wish {
			if err := errors.Join(f.Revoke(id), own.Close()); err != nil {
				t.Error(err)
			}
			return id
		}
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Errorf("identity %d is not handed out again", wish)
	return 0
}
