package fusee

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestChoose asserts what Mend says about the word that a slot gets.
func TestChoose(t *testing.T) {
	old, a, b := race.Pack(1, 1, 10, 0), race.Pack(1, 1, 20, 0), race.Pack(1, 1, 30, 0)
	pa, pb := a.Pending(), b.Pending()
	for _, c := range []struct {
		words []race.Word
		want  race.Word
		ok    bool
	}{
		{[]race.Word{old}, old, true},
		{[]race.Word{pa}, 0, false},
		{[]race.Word{0}, 0, true},
		{[]race.Word{old, old}, old, true},
		{[]race.Word{old, a}, a, true},
		{[]race.Word{old, pa}, old, true},
		{[]race.Word{pa, pa}, 0, false},
		{[]race.Word{pa, 0}, 0, true},
		{[]race.Word{old, a, a}, a, true},
		{[]race.Word{old, a, b}, old, true},
		{[]race.Word{old, old, b}, old, true},
		{[]race.Word{old, pa, pa}, old, true},
		{[]race.Word{pa, a, pa}, a, true},
		{[]race.Word{pa, pb, pb}, 0, false},
		{[]race.Word{a, b, b, b}, b, true},
	} {
		got, ok := choose(c.words)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%v: got %v, %v, want %v, %v", c.words, got, ok, c.want, c.ok)
		}
	}
}

// TestReadsGoOn stops a master in the midst of mending: reads are answered, from backups where the
// primary died and they agree; writes wait.
func TestReadsGoOn(t *testing.T) {
	p := small(4, 3, 2)
	p.Timeout = 20 * time.Millisecond
	f := simPool(t, 4, p)
	ep := open2(t, f)
	c, err := Open(ep, thrifty(Options{}))
	must(t, err)
	const keys = 100
	key := func(i int) []byte { return fmt.Appendf(nil, "key %d", i) }
	for i := range keys {
		must(t, c.Insert(key(i), key(i)))
	}
	m, err := NewMender(open2(t, f))
	must(t, err)

	victim := m.original.index[0][0].Node
	must(t, f.KillNode(victim))
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := f.SetMember(1, victim, rdma.Member{}, rdma.Member{Gone: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	must(t, f.Fence(1))
	torn := -1
	for i := range keys {
		s, word := slotOf(t, c, m, key(i))
		if c.original.index[c.index.Subtable(s)][0].Node == victim && torn < 0 {
			// A writer died between its backups.
			torn = i
			cas(t, m, s, 1, word, race.Tombstone(word.Print(), 60, 1))
		}
	}
	if torn < 0 {
		t.Fatal("no key has its primary on the node")
	}
	for i := range keys {
		v, err := c.Get(key(i))
		if i == torn {
			if !errors.Is(err, errUnsettled) {
				t.Errorf("get of a key whose backups differ: %q, %v", v, err)
			}
		} else if err != nil || string(v) != string(key(i)) {
			t.Errorf("get %d: %q, %v", i, v, err)
		}
	}
	for _, err := range []error{c.Update(key(1), key(1)), c.Delete(key(1)), c.Insert([]byte("new"), nil)} {
		if !errors.Is(err, rdma.ErrTimeout) || errors.Is(err, client.ErrUncertain) {
			t.Errorf("a write under a busy view: %v", err)
		}
	}

	v, err := m.ep.Join()
	must(t, err)
	must(t, m.Mend(v))
	if ok, err := f.Advance(rdma.State{Epoch: 1, Busy: true}, rdma.State{Epoch: 1}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for i := range keys {
		_, err := c.Get(key(i))
		if i == torn && errors.Is(err, client.ErrNotFound) {
			continue
		}
		must(t, err)
		must(t, c.Update(key(i), key(i+1)))
	}
	must(t, c.Close())
	r, err := Check(f)
	if err != nil || len(r.Damage)+len(r.Waiting) > 0 {
		t.Fatal(r.Damage, r.Waiting, err)
	}
}

func simPool(t *testing.T, nodes int, p Params) *sim.Sim {
	t.Helper()
	l, err := newLayout(p, nodes, 1<<40)
	must(t, err)
	f := sim.New(sim.Options{Nodes: nodes, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve})
	t.Cleanup(func() { f.Close() })
	must(t, Make(f, p))
	return f
}

func open2(t *testing.T, f rdma.Fabric) rdma.Endpoint {
	t.Helper()
	ep, err := f.Open("worker")
	must(t, err)
	t.Cleanup(func() { ep.Close() })
	return ep
}

// slotOf finds a key's slot and word on the first backup of the original placement that lives.
func slotOf(t *testing.T, c *Client, m *Mender, key []byte) (race.Slot, race.Word) {
	t.Helper()
	e := c.cache.Find(race.Hash(key))
	if e == nil {
		t.Fatalf("%q is not cached", key)
	}
	return e.slot(), e.word
}

func cas(t *testing.T, m *Mender, s race.Slot, replica int, from, to race.Word) {
	t.Helper()
	v, err := m.ep.Join()
	must(t, err)
	index := m.index
	index.Place = m.original.index
	addr := index.Address(s, replica)
	if v.Members[addr.Node()].Gone {
		t.Fatalf("replica %d is on a dead node", replica)
	}
	b := m.ep.Batch()
	defer b.Release()
	op := b.CompareSwap(addr, uint64(from), uint64(to))
	must(t, m.do("test", b))
	if !op.Swapped() {
		t.Fatalf("replica %d of slot %d holds %v, not %v", replica, s, race.Word(op.Result), from)
	}
}
