package sherman

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// death is a client that dies behind a verb of an INSERT that splits, and one that works on all
// keys then.
type death struct {
	format string
	kept   bool // there is a master, which looks for dead clients each dtx.Detection
	verb   uint64
}

// play returns the longest operation of the one that lives, what an operation that failed says, and
// whether the other one died.
func (c *death) play(t *testing.T) (longest time.Duration, blocked error, died bool) {
	const keys = 12
	p := tiny(c.format, 2)
	if c.format == RTX {
		p.Lease = DefaultLease
	}
	s := sim.New(sim.Options{Seed: 1, Nodes: 2, Memory: p.Memory, Clients: p.Clients, Handler: node.Serve})
	defer s.Close()
	must(t, p.make(s))
	var failed error
	over := false
	key := func(i int) []byte { return fmt.Appendf(nil, "key%02d", i) }
	work := func(name string, f func(st *Store) error) *sim.Worker {
		return s.Go(name, func(ep rdma.Endpoint) {
			st, err := Open(ep, Options{})
			if err == nil {
				err = errors.Join(f(st), st.Close())
			}
			failed = errors.Join(failed, err)
		})
	}
	work("founder", func(st *Store) (err error) {
		for i := range keys {
			err = errors.Join(err, st.Insert(key(i), key(i)))
		}
		return err
	})
	must(t, errors.Join(s.Run(), failed))
	if c.kept {
		s.Go("master", func(ep rdma.Endpoint) {
			o := cluster.Options{Lease: 4 * dtx.Detection, Tick: dtx.Detection, Stop: func() bool { return over }}
			failed = errors.Join(failed, cluster.Keep(ep, s, NewRecoverer, o))
		})
	}
	victim := work("victim", func(st *Store) error { return st.Insert([]byte("key03x"), make([]byte, 60)) })
	s.CrashAt(victim, c.verb)
	work("other", func(st *Store) error {
		defer func() { over = true }()
		for !victim.Crashed() && !victim.Finished() {
			st.ep.Sleep(time.Microsecond)
		}
		for i := range keys {
			began := st.ep.Now()
			for _, err := range []error{getOnly(st, string(key(i))), st.Update(key(i), key(i))} {
				if err != nil {
					blocked = err
				}
			}
			longest = max(longest, st.ep.Now()-began)
		}
		return nil
	})
	must(t, errors.Join(s.Run(), failed))
	if !strings.Contains(fmt.Sprint(blocked), fmt.Sprintf("client %d;", victim.Client())) && blocked != nil {
		t.Errorf("it does not name client %d: %v", victim.Client(), blocked)
	}
	c.judge(t, s)
	return longest, blocked, victim.Crashed()
}

// judge checks the tree: what the dead client has left is no damage, and nothing
// of it is left after its recovery.
func (c *death) judge(t *testing.T, s *sim.Sim) {
	t.Helper()
	r, err := Check(s)
	if err != nil || len(r.Damage) > 0 || len(r.Unchecked) > len(r.Waiting) {
		t.Errorf("%+v: check: %+v, %v", *c, r, err)
	}
	s.Go("master", func(ep rdma.Endpoint) {
		_, err = cluster.Once(ep, s, NewRecoverer, cluster.Options{})
	})
	must(t, errors.Join(s.Run(), err))
	if r, err = Check(s); err != nil || len(r.Damage)+len(r.Unchecked)+len(r.Waiting) > 0 {
		t.Errorf("%+v: check behind the recovery: %+v, %v", *c, r, err)
	}
}

// TestLostChunks: chunks of a client that the pool does not know any more are seen.
func TestLostChunks(t *testing.T) {
	both(t, func(t *testing.T, format string) {
		f := memPool(t, small(format, 1, 100, 100))
		var gone []rdma.Endpoint
		for i := range 2 { // Check has the identity of one of them, and so gives back what that had
			ep, err := f.Open("gone")
			must(t, err)
			s, err := Open(ep, Options{})
			must(t, err)
			must(t, s.Insert([]byte{byte('a' + i)}, make([]byte, 50)))
			gone = append(gone, ep)
		}
		for _, ep := range gone {
			must(t, ep.Close()) // without the store
		}
		for _, c := range f.Clients() {
			must(t, errors.Join(f.RevokeLife(c), f.Forget(c)))
		}
		r, err := Check(f)
		must(t, err)
		if found := append(r.Damage, r.Waiting...); len(found) != 1 || !strings.Contains(found[0], "chunks of memory") {
			t.Errorf("%+v", r)
		}
	})
}

// TestDead: a client dies behind each verb. Over rtx others wait for a lease at
// most, and need no master. Over dtx they wait until a master has found and
// recovered it. Without a master operations that meet its locks end in an error
// that names the client.
func TestDead(t *testing.T) {
	virtual(t)
	const slack = 500 * time.Microsecond     // for some trips
	const perObject = 100 * time.Microsecond // of a lease, for each object of the transaction
	for _, c := range []struct {
		death
		most time.Duration
	}{
		{death{format: RTX}, DefaultLease + 8*perObject + slack},
		{death{format: DTX, kept: true}, dtx.Detection + slack}, {death{format: DTX}, 0},
	} {
		longest, named, died := time.Duration(0), 0, true
		for c.verb = 1; died; c.verb++ {
			var took time.Duration
			var blocked error
			took, blocked, died = c.play(t)
			longest = max(longest, took)
			if blocked == nil {
				continue
			}
			named++
			if !errors.Is(blocked, rdma.ErrTimeout) || !strings.Contains(blocked.Error(), "farkv recover") {
				t.Errorf("%+v: %v", c.death, blocked)
			}
		}
		t.Logf("%+v: %v at most; %d were blocked", c.death, longest, named)
		if c.most > 0 && (longest > c.most || named > 0) {
			t.Errorf("%+v: an operation took %v, %v at most; %d were blocked", c.death, longest, c.most, named)
		}
		if c.most == 0 && named < 3 {
			t.Errorf("%+v: %d were blocked", c.death, named)
		}
	}
}
