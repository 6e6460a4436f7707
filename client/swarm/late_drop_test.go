package swarm

import (
	"fmt"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/node/rdma"
)

// landed executes its worker's first batch of a step, and then posts it again, behind what happens
// meanwhile: the worker is the last to learn that it has landed.
type landed struct {
	rdma.Endpoint
	step rdma.Step
	then func()
}

func (l *landed) Post(b *rdma.Batch) error {
	if b.Step() != l.step || b.Len() == 0 {
		return l.Endpoint.Post(b)
	}
	l.step = ""
	done := l.Endpoint.Batch()
	defer done.Release()
	for i := range b.Len() {
		if i > 0 && b.ChainOf(i) != b.ChainOf(i-1) {
			done.Chain()
		}
		if op := b.Op(i); op.Verb == rdma.Write {
			done.WriteCopy(op.Addr, op.Buf)
		} else {
			done.CompareSwap(op.Addr, op.Expect, op.Value)
		}
	}
	if err := rdma.Do(l.Endpoint, done, time.Second); err != nil {
		return err
	}
	l.then()
	return l.Endpoint.Post(b)
}

// TestDropLearnedLate: a client stands still behind the accept that drops a dying entry. A sweep
// retires the object, and another key gets it. Then the client learns that its change was made,
// and leaves the object alone.
func TestDropLearnedLate(t *testing.T) {
	p := small(3, 3, false)
	p.Regions, p.Objects, p.Buckets = 3, 8, 16
	f := storePool(t, 3, p)
	open := func() rdma.Endpoint {
		ep, err := f.Open(t.Name())
		must(t, err)
		t.Cleanup(func() { ep.Close() })
		return ep
	}
	master := open()
	m, err := NewRecoverer(master)
	must(t, err)
	stopped := &landed{Endpoint: open()}
	x, err := OpenStore(stopped, StoreOptions{})
	must(t, err)
	y, old := storeOn(t, f, StoreOptions{}), []byte("old")
	must(t, x.Insert(old, []byte("value")))
	location := x.find(xxhash.Sum64(old), old).location
	must(t, x.Delete(old))
	stopped.step, stopped.then = "accept", func() {
		nothing := func() {}
		sweepOnce(t, f, master, m, nothing, nothing)
		for range sweptFor {
			must(t, beginEpoch(f))
		}
		for n, at := 0, uint64(0); at != location; n++ {
			key := fmt.Appendf(nil, "new-%d", n)
			must(t, y.Insert(key, []byte("value")))
			at = y.find(xxhash.Sum64(key), key).location
		}
	}
	x.dropPending(0)
	if stopped.step != "" || len(x.pendingDrops) > 0 || x.dir.Stats().Helped != 1 {
		t.Fatalf("the change was not learned late: this test shows nothing: %+v", x.dir.Stats())
	}
	must(t, x.Close())
	r, err := Check(f)
	must(t, err)
	if len(r.Damage) > 0 {
		t.Errorf("check: %v", r.Damage)
	}
}
