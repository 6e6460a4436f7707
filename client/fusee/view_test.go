package fusee

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/recovery"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

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
	m, err := openMaster(open2(t, f))
	must(t, err)

	victim := m.s.Original.Index[0][0].Node
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
		if c.s.Original.Index[c.s.Index.Subtable(s)][0].Node == victim && torn < 0 {
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

	v, err := m.s.Join()
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

func simPool(t *testing.T, nodes int, p layout.Params) *sim.Sim {
	t.Helper()
	l, err := layout.New(p, nodes, 1<<40)
	must(t, err)
	f := sim.New(sim.Options{Nodes: nodes, Memory: l.Bytes, Clients: p.Clients, Handler: node.Serve})
	t.Cleanup(func() { f.Close() })
	must(t, session.Make(f, p))
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
func slotOf(t *testing.T, c *Client, m *master, key []byte) (race.Slot, race.Word) {
	t.Helper()
	e := c.cache.Find(race.Hash(key))
	if e == nil {
		t.Fatalf("%q is not cached", key)
	}
	return e.slot(), e.word
}

func cas(t *testing.T, m *master, s race.Slot, replica int, from, to race.Word) {
	t.Helper()
	v, err := m.s.Join()
	must(t, err)
	index := m.s.Index
	index.Place = m.s.Original.Index
	addr := index.Address(s, replica)
	if v.Members[addr.Node()].Gone {
		t.Fatalf("replica %d is on a dead node", replica)
	}
	b := m.s.Batch()
	defer b.Release()
	op := b.CompareSwap(addr, uint64(from), uint64(to))
	must(t, m.s.Do("test", b))
	if !op.Swapped() {
		t.Fatalf("replica %d of slot %d holds %v, not %v", replica, s, race.Word(op.Result), from)
	}
}

// master is a recoverer, with the session and the tables that it works on.
type master struct {
	*recovery.Recoverer
	s *session.Session
	t *memory.Tables
}

func openMaster(ep rdma.Endpoint) (*master, error) {
	s, err := session.Open(ep, 0)
	if err != nil {
		return nil, err
	}
	return &master{recovery.RecovererOf(s), s, memory.NewTables(s)}, nil
}
