package rtx

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// hooked is an endpoint that does something before a step of its worker, or behind it, once.
type hooked struct {
	rdma.Endpoint
	before map[rdma.Step]func()
	behind map[rdma.Step]func(b *rdma.Batch) // what was posted is complete, in memory of this process
}

func (h *hooked) Post(b *rdma.Batch) error {
	if f := h.before[b.Step()]; f != nil {
		delete(h.before, b.Step())
		f()
	}
	err := h.Endpoint.Post(b)
	if f := h.behind[b.Step()]; f != nil && err == nil {
		delete(h.behind, b.Step())
		f(b)
	}
	return err
}

// hookedWorker opens a worker, and returns where its hooks are set.
func hookedWorker(t testing.TB, f rdma.Fabric, l *Layout, o Options) (*Worker, map[rdma.Step]func()) {
	t.Helper()
	w, h := hookedBehind(t, f, l, o)
	return w, h.before
}

// hookedBehind is hookedWorker for hooks behind a step, too.
func hookedBehind(t testing.TB, f rdma.Fabric, l *Layout, o Options) (*Worker, *hooked) {
	t.Helper()
	ep, err := f.Open("hooked")
	must(t, err)
	h := &hooked{ep, map[rdma.Step]func(){}, map[rdma.Step]func(*rdma.Batch){}}
	return open(t, h, l, o), h
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

func (r *raw) meta(o Ref) Meta {
	p, err := rdma.ReadBytes(r.ep, "test", r.l.Meta(o), MetaBytes, time.Second)
	must(r.t, err)
	return MetaOf(p)
}

func (r *raw) state(c rdma.ClientID) state {
	s, err := rdma.ReadWord(r.ep, "test", r.l.log(c), time.Second)
	must(r.t, err)
	return state(s)
}

func (r *raw) swap(at rdma.Addr, old, new uint64) {
	r.t.Helper()
	b := r.ep.Batch()
	op := b.CompareSwap(at, old, new)
	must(r.t, rdma.Do(r.ep, b, time.Second))
	if !op.Swapped() {
		r.t.Errorf("the word at %v is %#x, not %#x", at, op.Result, old)
	}
	b.Release()
}

// lock puts a lock on an object, as if its CAS landed now.
func (r *raw) lock(o Ref, k Lock) {
	r.t.Helper()
	r.swap(r.l.Meta(o), uint64(r.meta(o).Lock), uint64(k))
}

func (r *raw) write(at rdma.Addr, p []byte) {
	b := r.ep.Batch()
	b.WriteCopy(at, p)
	must(r.t, rdma.Do(r.ep, b, time.Second))
	b.Release()
}

func word(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
