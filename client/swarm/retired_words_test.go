package swarm

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestBuffersOfRetired: two clients have written a pair, and one has deleted it. The words name
// buffers until the object may be claimed. Then a sweep makes them free, though objects that were
// never handed out are left, and the pool is intact.
func TestBuffersOfRetired(t *testing.T) {
	f := storePool(t, 3, small(3, 3, false))
	ep, err := f.Open("master")
	must(t, err)
	t.Cleanup(func() { ep.Close() })
	m, err := NewRecoverer(ep)
	must(t, err)
	open := func() *Store {
		ep, err := f.Open("client")
		must(t, err)
		t.Cleanup(func() { ep.Close() })
		k, err := OpenStore(ep, StoreOptions{})
		must(t, err)
		return k
	}
	x, y, key := open(), open(), []byte("key")
	must(t, x.draw())
	region, i := x.numberOf(x.objects.location)
	must(t, x.Insert(key, []byte("value")))
	must(t, y.Update(key, []byte("other")))
	must(t, x.Delete(key))
	must(t, x.Close())
	must(t, y.Close())
	named := func() (n int) {
		for r := range m.s.Replicas {
			must(t, m.s.eachBuffer(stepCheck, region, r, int(i)+1, func(location uint64, _ uint16) {
				if location == m.s.locationOf(region, i) {
					n++
				}
			}))
		}
		return n
	}
	retired, err := rdma.ReadWord(ep, stepCheck, m.s.retiredAt(region, i), m.s.Timeout)
	must(t, err)
	if retired == 0 || named() == 0 {
		t.Fatalf("the object is claimable from epoch %d on, and its words name %d buffers: this test shows nothing",
			retired, named())
	}
	for now := uint64(0); now < retired; {
		sweepOnce(t, f, ep, m, func() {}, func() {
			now = f.View().Epoch
			if n := named(); n == 0 != (now >= retired) {
				t.Errorf("epoch %d: the words name %d buffers, and the object is claimable from epoch %d on", now, n,
					retired)
			}
		})
	}
	must(t, open().Insert(key, []byte("value")))
	r, err := Check(f)
	must(t, err)
	if len(r.Damage) > 0 {
		t.Error(r.Damage)
	}
}

// TestFewPairsOfMany: keys come and go that several clients write, and few live at a time. No
// operation lacks a buffer, though the pool has far fewer than the objects that were handed out
// have words, and no object is used again.
func TestFewPairsOfMany(t *testing.T) {
	const writers, rounds = 4, 400
	p := small(3, 3, false)
	p.Regions, p.Objects, p.Values, p.Timeout = 3, 2000, Buffers{Segments: 1, Each: 600}, 20*time.Millisecond
	l, err := newPlan(p, 3)
	must(t, err)
	s := sim.New(sim.Options{Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve})
	defer s.Close()
	must(t, Make(s, p))
	turn := 0
	s.Go("keeper", func(ep rdma.Endpoint) {
		must(t, cluster.Keep(ep, s, makeRecoverer, cluster.Options{Lease: 400 * time.Microsecond,
			Stop: func() bool { return turn == rounds*writers || t.Failed() }}))
	})
	for w := range writers {
		s.Go(fmt.Sprintf("writer %d", w), func(ep rdma.Endpoint) {
			k, err := OpenStore(ep, StoreOptions{})
			must(t, err)
			for n := w; n < rounds*writers && !t.Failed(); n += writers {
				for turn != n {
					ep.Sleep(10 * time.Microsecond)
				}
				key := fmt.Appendf(nil, "key-%d", n/writers)
				switch w {
				case 0:
					err = k.Insert(key, []byte("value"))
				case writers - 1:
					err = k.Delete(key)
				default:
					err = k.Update(key, []byte("other"))
				}
				if err != nil {
					t.Errorf("%s: %v", key, err)
				}
				turn++
			}
			must(t, k.Close())
		})
	}
	must(t, s.Run())
}
