package rcuckoo

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// loneShard is a pool of one shard, with values in extents, two copies and a spare.
func loneShard() table.Params {
	p := extentPool(1)
	p.Slabs, p.Clients, p.Replicas, p.Spares, p.Timeout = 16, 8, 2, 1, 2*time.Second
	return p
}

// mended runs a master until it has nothing more to do.
func mended(t *testing.T, f rdma.Fabric) {
	t.Helper()
	ep, err := f.Open("master")
	must(t, err)
	_, err = cluster.Once(ep, f, func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) },
		cluster.Options{Lease: 5 * time.Millisecond})
	must(t, errors.Join(err, ep.Close()))
}

func whole(t *testing.T, f rdma.Fabric, when string) {
	t.Helper()
	r, err := Check(f)
	must(t, err)
	if len(r.Damage) > 0 {
		t.Errorf("%s: %q", when, r.Damage)
	}
}

// TestTakeover: after a takeover exactly the extents that rows name are used, those that clients
// had claimed are free, and a spare has all data.
func TestTakeover(t *testing.T) {
	f := memPool(t, 3, loneShard())
	a, b := storeOn(t, f, session.Options{}), storeOn(t, f, session.Options{})
	value := func(n int) []byte { return bytes.Repeat([]byte{byte(n + 1)}, 100) }
	for n := range 10 {
		must(t, a.Insert(fmt.Appendf(nil, "a%d", n), value(n)))
		must(t, b.Insert(fmt.Appendf(nil, "b%d", n), value(n)))
	}
	must(t, b.Delete([]byte("b0")))
	if !a.extents.HasClaims(0) {
		t.Fatal("nothing is in hand")
	}
	must(t, f.KillNode(0))
	mended(t, f)
	if v := f.View(); v.Members[2].Replaces != 1 || v.Busy {
		t.Fatalf("%+v", v)
	}
	whole(t, f, "behind a takeover")
	for n := 10; n < 20; n++ { // each has forgotten what it had claimed
		must(t, a.Insert(fmt.Appendf(nil, "a%d", n), value(n)))
		must(t, b.Insert(fmt.Appendf(nil, "b%d", n), value(n)))
	}
	whole(t, f, "behind changes")
	must(t, f.KillNode(1))
	mended(t, f)
	whole(t, f, "on the spare alone")
	for n := 1; n < 20; n++ {
		for _, prefix := range []string{"a", "b"} {
			v, err := b.Get(fmt.Appendf(nil, "%s%d", prefix, n))
			if err != nil || !bytes.Equal(v, value(n)) {
				t.Errorf("%s%d is %d bytes, %v", prefix, n, len(v), err)
			}
		}
	}
}

// strike is an endpoint that calls a function at one step of the protocol.
type strike struct {
	rdma.Endpoint
	at rdma.Step
	do func()
}

func (e *strike) Post(b *rdma.Batch) error {
	if b.Step() == e.at && e.do != nil {
		do := e.do
		e.do = nil
		do()
	}
	return e.Endpoint.Post(b)
}

// TestMidst: during a client's operation the leader's node dies, and another copy takes over
// before the client goes on. The client learns whether the operation took effect. It does not own
// the extent any more that it had taken for the operation.
func TestMidst(t *testing.T) {
	for _, at := range []rdma.Step{steps.Lock, steps.WriteBackups, steps.WriteRows, steps.Done} {
		for _, replicas := range []int{2, 3} {
			p := loneShard()
			p.Replicas, p.Spares = replicas, 3-replicas
			f := memPool(t, 3, p)
			ep, err := f.Open(t.Name())
			must(t, err)
			struck := &strike{Endpoint: ep}
			s, err := Open(struck, session.Options{Pool: f})
			must(t, err)
			key := []byte("key")
			must(t, s.Insert(key, make([]byte, 100)))
			struck.at, struck.do = at, func() {
				must(t, f.KillNode(0))
				mended(t, f)
			}
			want := bytes.Repeat([]byte{7}, 100)
			must(t, s.Update(key, want))
			if struck.do != nil {
				t.Fatalf("no step %q", at)
			}
			whole(t, f, string(at))
			if v, err := s.Get(key); err != nil || !bytes.Equal(v, want) {
				t.Errorf("%s: %v, %v", at, v, err)
			}
			if err := s.Insert(key, want); !errors.Is(err, client.ErrExists) {
				t.Errorf("%s: insert again: %v", at, err)
			}
			must(t, s.Delete(key))
			whole(t, f, string(at))
			must(t, s.Close())
			must(t, ep.Close())
		}
	}
}

// busyWithout begins a busy epoch in which a node is gone, as a master does, and does not mend
// the pool.
func busyWithout(t *testing.T, f *shm.Fabric, n int) {
	t.Helper()
	v := f.View()
	ok, err := f.Advance(rdma.State{Epoch: v.Epoch}, rdma.State{Epoch: v.Epoch + 1, Busy: true})
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	must(t, f.Expel(v.Epoch+1, n))
	must(t, f.Fence(v.Epoch+1))
	ok, err = f.SetMember(v.Epoch+1, n, rdma.Member{}, rdma.Member{Gone: true})
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// TestBusyView: under a busy view no client changes anything, and a client reads only shards that
// have the same leader as before.
func TestBusyView(t *testing.T) {
	p := loneShard()
	p.Shards, p.Spares, p.Timeout = 3, 0, 50*time.Millisecond
	f := memPool(t, 3, p)
	s := storeOn(t, f, session.Options{})
	keys := make([][]byte, 3) // by shard
	for n := 0; unnamed(keys); n++ {
		key := fmt.Appendf(nil, "key %d", n)
		if at := s.session.Table.Place(key); keys[at.Shard] == nil {
			keys[at.Shard] = key
			must(t, s.Insert(key, key))
		}
	}
	busyWithout(t, f, 0)
	late := storeOn(t, f, session.Options{})
	for shard, key := range keys {
		_, err := s.Get(key)
		if shard == 0 && !errors.Is(err, rdma.ErrTimeout) || shard > 0 && err != nil {
			t.Errorf("shard %d: get: %v", shard, err)
		}
		if err := s.Update(key, key); !errors.Is(err, rdma.ErrTimeout) || errors.Is(err, client.ErrUncertain) {
			t.Errorf("shard %d: update: %v", shard, err)
		}
		if _, err := late.Get(key); !errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("shard %d: get by a client that came in between: %v", shard, err)
		}
	}
	r, err := Check(f)
	must(t, err)
	if len(r.Damage) > 0 || len(r.Waiting) == 0 {
		t.Errorf("%q, waiting: %q", r.Damage, r.Waiting)
	}
	mended(t, f)
	for _, caller := range []*Store{s, late} {
		for shard, key := range keys {
			if _, err := caller.Get(key); err != nil {
				t.Errorf("shard %d: get behind it: %v", shard, err)
			}
			must(t, caller.Update(key, key))
		}
	}
	whole(t, f, "behind it")
}

func unnamed(keys [][]byte) bool {
	return slices.ContainsFunc(keys, func(key []byte) bool { return key == nil })
}

// TestSlowBackup: a backup takes longer than a failure timer for a verb. A client that waits for
// it is not fenced off, neither during a change of its own, nor while it repairs what a dead
// client left.
func TestSlowBackup(t *testing.T) {
	p := fullPool(1)
	p.Replicas, p.Timeout = 2, 2*time.Second
	l := lay(t, p, 2)
	v := sim.New(sim.Options{Seed: 1, Nodes: 2, Memory: l.Bytes, Clients: p.Clients, Handler: node.Serve,
		MinLatency: 500, MaxLatency: 1000,
		Faults: sim.Faults{{Kind: sim.SlowFault, Node: 1, At: time.Millisecond, For: time.Second, Factor: 10_000}}})
	defer v.Close()
	must(t, Make(v, p))
	key := []byte("key")
	var victim *sim.Worker
	for w := range 4 {
		worker := v.Go(fmt.Sprint("worker ", w), func(ep rdma.Endpoint) {
			s, err := Open(ep, session.Options{Pool: v, Failure: impatient})
			must(t, err)
			if w == 0 {
				must(t, s.Insert(key, check.MakeValue(nil, 0, 1, 16)))
			}
			ep.Sleep(2*time.Millisecond - v.Now())
			if w == 3 {
				v.CrashAt(victim, victim.Sent()+5) // behind its redo on the backup
			} else {
				ep.Sleep(time.Millisecond)
			}
			for n := range 3 {
				if err := s.Update(key, check.MakeValue(nil, w, n+2, 16)); err != nil && w < 3 {
					t.Errorf("worker %d: %v", w, err)
				}
			}
			if err := s.Close(); err != nil && w < 3 {
				t.Error(err)
			}
		})
		victim = worker
	}
	must(t, v.Run())
	if !victim.Crashed() {
		t.Error("no client died")
	}
}

// TestRecovered lets a client crash after each verb of an update. After its recovery all copies
// are equal. What a reader finds then is found again after the leader's node has died, and after
// another one has.
func TestRecovered(t *testing.T) {
	old, changed := 0, 0
	for k := uint64(0); ; k++ {
		p := loneShard()
		p.Replicas, p.Spares, p.Slabs, p.Rows, p.Timeout = 3, 0, 4, 32, 100*time.Millisecond
		l := lay(t, p, 3)
		o := sim.Hostile(k)
		o.Nodes, o.Memory, o.Clients, o.Handler = 3, l.Bytes, p.Clients, node.Serve
		v := sim.New(o)
		must(t, Make(v, p))
		key, values := []byte("key"), [2][]byte{bytes.Repeat([]byte{1}, 100), bytes.Repeat([]byte{2}, 100)}
		var victim *sim.Worker
		victim = v.Go("victim", func(ep rdma.Endpoint) {
			s, err := Open(ep, session.Options{Pool: v})
			must(t, err)
			must(t, s.Insert(key, values[0]))
			v.CrashAt(victim, victim.Sent()+k)
			if err := s.Update(key, values[1]); err != nil && !victim.Crashed() {
				t.Error(err)
			}
		})
		must(t, v.Run())
		if !victim.Crashed() {
			must(t, v.Close())
			break
		}
		var found []byte
		for _, dead := range []int{-1, 0, 1} {
			if dead >= 0 {
				must(t, v.KillNode(dead))
			}
			v.Go("master", func(ep rdma.Endpoint) {
				recoverer := func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) }
				_, err := cluster.Once(ep, v, recoverer, cluster.Options{Lease: 5 * time.Millisecond})
				must(t, err)
			})
			must(t, v.Run())
			r, err := Check(v)
			must(t, err)
			if len(r.Damage)+len(r.Waiting) > 0 {
				t.Fatalf("crash behind verb %d, and node %d died: %q, waiting: %q", k, dead, r.Damage, r.Waiting)
			}
			v.Go("reader", func(ep rdma.Endpoint) {
				s, err := Open(ep, session.Options{Pool: v})
				must(t, err)
				value, err := s.Get(key)
				must(t, err)
				if dead >= 0 && !bytes.Equal(value, found) {
					t.Errorf("crash behind verb %d: the value changed when node %d died", k, dead)
				}
				found = bytes.Clone(value)
				must(t, s.Close())
			})
			must(t, v.Run())
		}
		if bytes.Equal(found, values[0]) {
			old++
		} else {
			changed++
		}
		must(t, v.Close())
	}
	if old == 0 || changed == 0 {
		t.Errorf("%d crashes left the old value, %d the new one", old, changed)
	}
}

// cutOff is a fabric whose workers post so many batches, and no more.
type cutOff struct {
	*shm.Fabric
	posts int
}

var errCutOff = errors.New("cut off")

func (f *cutOff) Open(name string) (rdma.Endpoint, error) {
	ep, err := f.Fabric.Open(name)
	return cutEndpoint{ep, f}, err
}

type cutEndpoint struct {
	rdma.Endpoint
	f *cutOff
}

func (e cutEndpoint) Post(b *rdma.Batch) error {
	if e.f.posts--; e.f.posts < 0 {
		return errCutOff
	}
	return e.Endpoint.Post(b)
}

// TestMakeIsCutOff ends Make behind each of its batches. Clients find no store, or one of which
// each shard has a leader.
func TestMakeIsCutOff(t *testing.T) {
	p := inlinePool(3)
	p.Replicas = 2
	l, err := table.New(p, 3)
	must(t, err)
	missing, found := 0, 0
	for posts := 0; ; posts++ {
		f, err := shm.NewMem(shm.Geometry{Nodes: 3, Memory: l.Bytes, Clients: p.Clients}, node.Serve)
		must(t, err)
		made := Make(&cutOff{f, posts}, p)
		ep, err := f.Open("reader")
		must(t, err)
		if _, err := node.ReadHeader(ep, 3); err != nil {
			missing++
		} else {
			found++
			for shard := range p.Shards {
				role, err := rdma.ReadWord(ep, "read role", l.RoleAt(shard), time.Second)
				if must(t, err); role != table.Leading {
					t.Errorf("behind %d batches shard %d has role %#x", posts, shard, role)
				}
			}
		}
		must(t, errors.Join(ep.Close(), f.Close()))
		if made == nil {
			break
		}
		if !errors.Is(made, errCutOff) {
			t.Fatal(made)
		}
	}
	if missing < 2 || found < 2 {
		t.Errorf("%d pools had no header, and %d had one: this test shows nothing", missing, found)
	}
}
