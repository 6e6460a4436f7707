package rtx

import (
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
)

// TestFailedRelease: a node is out of reach for a moment just when a lock is released. The worker
// releases it when it closes, also if another one has made it wanted.
func TestFailedRelease(t *testing.T) {
	for _, c := range []struct {
		name   string
		step   rdma.Step
		wanted bool
	}{
		{"behind a commit", stepUnlock, false}, {"behind nothing", stepLetGo, false}, {"wanted", stepUnlock, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, l := pool(t, Shape{Nodes: 1, Roots: 1})
			a := l.Root(0)
			ep, err := f.Open("worker")
			must(t, err)
			w, err := Open(fault.New(ep, fault.Fault{Step: c.step, Err: rdma.ErrNodeDown}), l, Options{Drift: long})
			must(t, err)
			other, r := worker(t, f, l, Options{}), newRaw(t, f, l)
			if c.step == stepUnlock {
				must(t, set(w, "new", a))
			} else {
				wantError(t, w.Run(func(tx *Tx) error {
					must(t, tx.Lock(a))
					return errNothing
				}), errNothing)
			}
			if !r.meta(a).Lock.Held() {
				t.Fatal("the release did not fail")
			}
			if c.wanted {
				must(t, other.want(l.Meta(a), r.meta(a).Lock))
			}
			must(t, w.Close())
			if k := r.meta(a).Lock; k.Held() || k.Wanted() != c.wanted {
				t.Errorf("the lock is %#x behind Close", k)
			}
		})
	}
}

// TestReleasesStayBounded: a worker keeps no more releases to do again than it does at once.
func TestReleasesStayBounded(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1, Roots: 1})
	w := worker(t, f, l, Options{})
	for range 10 * mostFailed {
		b := w.ep.Batch()
		b.CompareSwap(l.Meta(l.Root(0)), 1, 2).Err = client.ErrUncertain
		w.noteFailed(b)
		b.Release()
	}
	if len(w.failed) != mostFailed || cap(w.failed) > 8*mostFailed {
		t.Errorf("%d of %d", len(w.failed), cap(w.failed))
	}
}
