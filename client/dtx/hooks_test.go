package dtx

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// hooked is an endpoint that does something before a step of its worker, once.
type hooked struct {
	rdma.Endpoint
	before map[rdma.Step]func()
}

func (h *hooked) Post(b *rdma.Batch) error {
	if f := h.before[b.Step()]; f != nil {
		delete(h.before, b.Step())
		f()
	}
	return h.Endpoint.Post(b)
}

// hookedWorker opens a worker, and returns where its hooks are set.
func hookedWorker(t testing.TB, f rdma.Fabric, l *Layout, o Options) (*Worker, map[rdma.Step]func()) {
	t.Helper()
	ep, err := f.Open("hooked")
	must(t, err)
	h := &hooked{ep, map[rdma.Step]func(){}}
	return open(t, h, l, o), h.before
}

// replaceable is an endpoint that a test replaces under its worker.
type replaceable struct{ rdma.Endpoint }

// raw posts verbs beside those of any worker.
type raw struct {
	t  testing.TB
	ep rdma.Endpoint
	l  *Layout
}

func newRaw(t testing.TB, f rdma.Fabric, l *Layout) *raw {
	t.Helper()
	ep, err := f.Open("raw")
	must(t, err)
	return &raw{t, ep, l}
}

func (r *raw) word(at rdma.Addr) uint64 {
	w, err := rdma.ReadWord(r.ep, "test", at, time.Second)
	must(r.t, err)
	return w
}

// nodeOf returns the node that an object lies on.
func nodeOf(l *Layout, r Ref) int {
	at, _ := l.Object(r)
	return at.Node()
}

func (r *raw) lock(o Ref) Version {
	at, _ := r.l.Object(o)
	return Version(r.word(at))
}

// take puts a lock on an object, as if its CAS landed now.
func (r *raw) take(o Ref, v Version) {
	r.t.Helper()
	at, _ := r.l.Object(o)
	b := r.ep.Batch()
	op := b.CompareSwap(at, uint64(r.lock(o)), uint64(v))
	must(r.t, rdma.Do(r.ep, b, time.Second))
	if !op.Swapped() {
		r.t.Errorf("the lock of %v is %#x", o, op.Result)
	}
	b.Release()
}
