package swarm

import (
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// expel marks a node as gone in the view of a new epoch.
func expel(t *testing.T, f rdma.Fabric, node int) {
	t.Helper()
	v := f.View()
	busy := rdma.State{Epoch: v.Epoch + 1, Busy: true}
	_, err := f.Advance(rdma.State{Epoch: v.Epoch}, busy)
	must(t, err)
	must(t, f.Fence(busy.Epoch))
	_, err = f.SetMember(busy.Epoch, node, rdma.Member{}, rdma.Member{Gone: true})
	must(t, err)
	_, err = f.Advance(busy, rdma.State{Epoch: busy.Epoch})
	must(t, err)
}

// TestEndWithoutBuffers: the deleter of a key has died behind its mark, one of the two nodes that
// have the pair is lost, and the pool has no buffer for a third one. A sweep, and a DELETE, end the
// object all the same: a tombstone needs no buffer.
func TestEndWithoutBuffers(t *testing.T) {
	for _, op := range []string{"sweep", "DELETE"} {
		p := small(3, 3, false)
		p.Values = Buffers{Segments: 1, Each: 8}
		f := storePool(t, 3, p)
		ep, err := f.Open("master")
		must(t, err)
		t.Cleanup(func() { ep.Close() })
		m, err := NewRecoverer(ep)
		must(t, err)
		x, key := storeOn(t, f, StoreOptions{}), []byte("key")
		hash := xxhash.Sum64(key)
		must(t, x.encode(key, []byte("value")))
		must(t, x.draw())
		k := &x.objects.spare
		must(t, x.c.use(k, 1))
		pair := put{tuple: tuple{stamp: x.c.stamp(1, x.c.tid) | verified, value: x.pair},
			from: quorum.Only(0) | quorum.Only(1), need: 2, expect: &k.own}
		must(t, x.c.put("test", k, &pair))
		lost := k.At[0].Node()
		c := change{s: x, hash: hash, key: key}
		must(t, c.run(func(bucket []directory.Entry) ([]directory.Entry, error) {
			return append(bucket, directory.Entry{Hash: hash, Location: x.objects.location | dying}), nil
		}))
		x.objects.location = 0
		for n := range 3 {
			for err = nil; err == nil; {
				_, _, err = x.values.Allocate(n, 0)
			}
			wantError(t, err, client.ErrFull)
		}
		must(t, f.KillNode(lost))
		expel(t, f, lost)
		_, err = ep.Join()
		must(t, err)
		if y := storeOn(t, f, StoreOptions{}); op == "DELETE" {
			wantError(t, y.Delete(key), client.ErrNotFound)
		}
		sweepOnce(t, f, ep, m, func() {}, func() {})
		r, err := Check(f)
		must(t, err)
		if len(r.Damage) > 0 {
			t.Errorf("%s: check: %v", op, r.Damage)
		}
	}
}
