package rtx

import (
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
)

// TestFailedRelease: a node is out of reach for a moment just when a lock is released. When the
// worker has closed, another one takes the lock at once, also if that has made it wanted.
func TestFailedRelease(t *testing.T) {
	for _, c := range []struct {
		name   string
		step   rdma.Step
		err    error
		wanted bool
	}{
		{"behind a commit", stepUnlock, rdma.ErrNodeDown, false}, {"wanted", stepUnlock, rdma.ErrNodeDown, true},
		{"behind nothing", stepLetGo, rdma.ErrNodeDown, false},
		{"not decided", stepDecide, rdma.ErrTimeout, false}, // what the worker learns when it closes
	} {
		t.Run(c.name, func(t *testing.T) {
			f, l := pool(t, Shape{Nodes: 1, Roots: 1})
			a := l.Root(0)
			ep, err := f.Open("worker")
			must(t, err)
			w, err := Open(fault.New(ep, fault.Fault{Step: c.step, Err: c.err}), l,
				Options{Drift: long, Log: c.step == stepDecide})
			must(t, err)
			other, r := worker(t, f, l, Options{}), newRaw(t, f, l)
			switch c.step {
			case stepUnlock:
				must(t, set(w, "new", a))
			case stepDecide:
				wantError(t, set(w, "new", a), client.ErrUncertain)
			default:
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
			u, err := other.Check(func(c rdma.ClientID) bool { return c == other.id })
			if err != nil || u.Held != u.Over {
				t.Errorf("got %+v, %v, want no lock of a transaction that did not end", u, err)
			}
			began := other.ep.Now()
			must(t, set(other, "newer", a))
			if took := other.ep.Now() - began; took >= long {
				t.Errorf("the next worker waited for %v", took)
			}
		})
	}
}
