package rdmatest

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// testAccess strays in each way, in the midst of a batch: what was posted before it lands, what
// comes behind it on the same connection does not, other nodes and other workers do not notice.
func testAccess(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, nil)
	end := f.Size()
	round := uint64(0)
	for _, c := range []struct {
		name string
		bad  func(b *rdma.Batch) *rdma.Op
	}{
		{"READ over the end", func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, end-8), 9) }},
		{"READ far outside", func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, rdma.MaxOffset-8), 64) }},
		{"WRITE over the end", func(b *rdma.Batch) *rdma.Op { return b.Write(rdma.At(0, end-8), b.Alloc(64)) }},
		{"WRITE at the end", func(b *rdma.Batch) *rdma.Op { return b.Write(rdma.At(0, end), word(b, 1)) }},
		{"CAS at the end", func(b *rdma.Batch) *rdma.Op { return b.CompareSwap(rdma.At(0, end), 0, 1) }},
		{"FAA over the end", func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, end-4), 1) }},
		{"misaligned CAS", func(b *rdma.Batch) *rdma.Op { return b.CompareSwap(rdma.At(0, 132), 0, 1) }},
		{"misaligned FAA", func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, 129), 1) }},
	} {
		round++
		one(t, h, f, func(ep rdma.Endpoint) { stray(t, ep, c.name, c.bad, round) })
		expect(t, h, f, rdma.At(0, 64), round)
		expect(t, h, f, rdma.At(1, 64), round)
		for _, untouched := range []uint64{128, 136, 256, 264, end - 8} {
			expect(t, h, f, rdma.At(0, untouched), 0)
		}
	}
	one(t, h, f, func(ep rdma.Endpoint) {
		if err := write(ep, rdma.At(2, 0), make([]byte, 8)); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("WRITE to a node that the pool does not have: %v", err)
		}
	})
}

func stray(t testing.TB, ep rdma.Endpoint, name string, bad func(b *rdma.Batch) *rdma.Op, round uint64) {
	b := ep.Batch()
	defer b.Release()
	p := word(b, round)
	before := b.Write(rdma.At(0, 64), p)
	op := bad(b)
	behind, elsewhere := b.Write(rdma.At(0, 256), p), b.Write(rdma.At(1, 64), p)
	err := rdma.Do(ep, b, patience)
	var at *rdma.OpError
	if !errors.Is(op.Err, rdma.ErrAccess) || errors.Is(op.Err, rdma.ErrRevoked) || !errors.As(err, &at) ||
		at.Addr != op.Addr || at.Verb != op.Verb {
		t.Errorf("%s: %v, first error of the batch %v", name, op.Err, err)
	}
	if before.Err != nil || behind.Err == nil || elsewhere.Err != nil {
		t.Errorf("%s: ops before it, behind it, elsewhere ended in %v; %v; %v", name, before.Err,
			behind.Err, elsewhere.Err)
	}
	if write(ep, rdma.At(0, 264), []byte{1}) == nil {
		t.Errorf("%s: the connection is not down", name)
	}
	if _, err := load(ep, rdma.At(1, 64)); err != nil {
		t.Errorf("%s: the connection to another node: %v", name, err)
	}
}

// testNodeDeath kills a node while workers use it and another one.
func testNodeDeath(t testing.TB, h Harness) {
	if h.KillNode == nil {
		t.Skip("nodes of this fabric cannot die")
	}
	f := h.New(t, 2, poolBytes, func(rdma.Memory, *rdma.Request) error { return nil })
	user := func(ep rdma.Endpoint) {
		dead := false
		for until := ep.Now() + patience; !dead && ep.Now() < until; {
			b := ep.Batch()
			dies := b.FetchAdd(rdma.At(0, 0), 1)
			lives := b.FetchAdd(rdma.At(1, 0), 1)
			rdma.Do(ep, b, patience)
			if lives.Err != nil || dies.Err != nil && !errors.Is(dies.Err, rdma.ErrNodeDown) {
				t.Errorf("%v, %v", lives.Err, dies.Err)
				return
			}
			dead = dies.Err != nil
			b.Release()
		}
		if _, err := load(ep, rdma.At(0, 0)); !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("READ from a dead node: %v", err)
		}
		if err := ep.Call(0, &rdma.Request{}, patience); !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("call of a dead node: %v", err)
		}
		if err := ep.Call(1, &rdma.Request{}, patience); err != nil {
			t.Errorf("call of a node that lives: %v", err)
		}
		if v, err := load(ep, rdma.At(1, 0)); err != nil || v == 0 {
			t.Errorf("READ from a node that lives: %d, %v", v, err)
		}
	}
	h.Parallel(t, f, user, user, func(ep rdma.Endpoint) {
		ep.Sleep(time.Millisecond)
		h.KillNode(t, f, 0)
		if err := write(ep, rdma.At(0, 64), make([]byte, 8)); !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("WRITE to a node that was just killed: %v", err)
		}
	})
}

// testRevoke fences a client off while it posts: nothing of it lands once Revoke has returned.
func testRevoke(t testing.TB, h Harness) {
	for range 20 {
		revoke(t, h)
	}
}

func revoke(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, serve)
	victim := func(ep rdma.Endpoint) {
		if met, err := compareSwap(ep, rdma.At(1, 0), 0, uint64(ep.Client())); met != 0 || err != nil {
			t.Errorf("met %d, %v", met, err)
		}
		err := error(nil)
		for until := ep.Now() + patience; err == nil && ep.Now() < until; {
			b := ep.Batch()
			for i := range 20 {
				b.FetchAdd(rdma.At(0, uint64(i%2)*8), 1)
			}
			err = rdma.Do(ep, b, patience)
			b.Release()
		}
		_, again := fetchAdd(ep, rdma.At(0, 0), 1)
		call := ep.Call(0, &rdma.Request{Proc: add, Arg: [6]uint64{0, 1}}, patience)
		if !errors.Is(err, rdma.ErrRevoked) || !errors.Is(again, rdma.ErrRevoked) || !errors.Is(call, rdma.ErrRevoked) {
			t.Errorf("the client that was fenced off ended in %v; %v; its call in %v", err, again, call)
		}
	}
	master := func(ep rdma.Endpoint) {
		id, err := uint64(0), error(nil)
		for until := ep.Now() + patience; id == 0 && err == nil && ep.Now() < until; {
			id, err = load(ep, rdma.At(1, 0))
		}
		ep.Sleep(100 * time.Microsecond)
		if rerr := f.Revoke(rdma.ClientID(id)); rerr != nil || err != nil {
			t.Errorf("revoke client %d: %v, %v", id, rerr, err)
			return
		}
		for _, c := range f.Clients() {
			if c.ID == rdma.ClientID(id) && c.Alive || c.ID == ep.Client() && (!c.Alive || c.Life != ep.Life()) {
				t.Errorf("after client %d was fenced off by %d: %+v", id, ep.Client(), c)
			}
		}
		stays(t, ep)
		if err := f.Revoke(rdma.ClientID(id)); err != nil {
			t.Errorf("revoked twice: %v", err)
		}
		if _, err := fetchAdd(ep, rdma.At(1, 8), 1); err != nil {
			t.Errorf("the others do not go on: %v", err)
		}
	}
	h.Parallel(t, f, victim, master)
}

// stays checks that the words that the victim adds to do not change any more.
func stays(t testing.TB, ep rdma.Endpoint) {
	var first [16]byte
	for i := range 10 {
		p, err := read(ep, rdma.At(0, 0), 16)
		if err != nil {
			t.Error(err)
			return
		}
		if i == 0 {
			first = [16]byte(p)
		}
		if [16]byte(p) != first {
			t.Errorf("a verb landed after Revoke had returned: %x, then %x", first, p)
			return
		}
		ep.Sleep(50 * time.Microsecond)
	}
}
