package rdmatest_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// saboteur is an endpoint that breaks one rule. Its functions are nil where it behaves.
type saboteur struct {
	rdma.Endpoint
	before func(s *saboteur, b *rdma.Batch)                  // changes what is posted
	after  func(s *saboteur, b *rdma.Batch)                  // changes what was posted
	answer func(s *saboteur, b *rdma.Batch)                  // changes what was answered
	limits func(n int, d time.Duration) (int, time.Duration) // changes what is waited for
	post   func(s *saboteur, b *rdma.Batch) error
	id     rdma.ClientID
	lazy   bool // neither sleeps nor closes
	same   bool // draws the same as every other worker
	deaf   bool // calls do nothing
	join   func(s *saboteur) (rdma.View, error)
	listen func(ep rdma.Endpoint, o rdma.BoxOptions) (rdma.Mailbox, error)
	ring   func(r rdma.Ring) rdma.Ring
	notes  map[*rdma.Op]error
}

func (s *saboteur) Post(b *rdma.Batch) error {
	if s.before != nil {
		s.before(s, b)
	}
	post := s.Endpoint.Post
	if s.post != nil {
		post = func(b *rdma.Batch) error { return s.post(s, b) }
	}
	err := post(b)
	if s.after != nil {
		s.after(s, b)
	}
	return err
}

func (s *saboteur) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if s.limits != nil {
		if n == rdma.All {
			n = b.Chains()
		}
		n, within = s.limits(n, within)
	}
	err := s.Endpoint.Wait(b, n, within)
	if s.answer != nil {
		s.answer(s, b)
	}
	return err
}

func (s *saboteur) Client() rdma.ClientID {
	if s.id != 0 {
		return s.id
	}
	return s.Endpoint.Client()
}

func (s *saboteur) Rand() *rand.Rand {
	if s.same {
		return rand.New(rand.NewPCG(1, 1))
	}
	return s.Endpoint.Rand()
}

func (s *saboteur) Sleep(d time.Duration) {
	if !s.lazy {
		s.Endpoint.Sleep(d)
	}
}

func (s *saboteur) Close() error {
	if s.lazy {
		return nil
	}
	return s.Endpoint.Close()
}

func (s *saboteur) Call(node int, r *rdma.Request, within time.Duration) error {
	if s.deaf {
		return nil
	}
	return s.Endpoint.Call(node, r, within)
}

func (s *saboteur) Join() (rdma.View, error) {
	if s.join != nil {
		return s.join(s)
	}
	return s.Endpoint.Join()
}

// rule is a promise of a fabric, how it is broken, and which tests must see it.
type rule struct {
	broken  string
	seen    []string
	worker  saboteur
	harness func(h *rdmatest.Harness)
	handler func(h rdma.Handler) rdma.Handler
	fabric  func(s *sim.Sim) rdma.Fabric
	peek    func(s *sim.Sim, name string) (rdma.Endpoint, error) // nil: the fabric has no looks
}

// lame is a fabric that breaks its own rules, with workers that break theirs.
type lame struct {
	rdma.Fabric
	s *sim.Sim
	r *rule
}

func (l *lame) Open(name string) (rdma.Endpoint, error) {
	ep, err := l.Fabric.Open(name)
	if err != nil {
		return nil, err
	}
	return l.r.sabotage(ep), nil
}

// peeking is a lame fabric with looks.
type peeking struct{ *lame }

func (p peeking) Peek(name string) (rdma.Endpoint, error) { return p.r.peek(p.s, name) }

func lameOf(f rdma.Fabric) *lame {
	if p, ok := f.(peeking); ok {
		return p.lame
	}
	return f.(*lame)
}

func (r *rule) sabotage(ep rdma.Endpoint) rdma.Endpoint {
	s := r.worker
	s.Endpoint, s.notes = ep, map[*rdma.Op]error{}
	return &s
}

// harnessOf returns a harness for fabrics that break r.
func (r *rule) harnessOf(o sim.Options) rdmatest.Harness {
	h := simHarness(o)
	good := h
	h.New = func(t testing.TB, nodes int, memory uint64, handler rdma.Handler) rdma.Fabric {
		if r.handler != nil && handler != nil {
			handler = r.handler(handler)
		}
		s := good.New(t, nodes, memory, handler).(*sim.Sim)
		l := &lame{s, s, r}
		if r.fabric != nil {
			l.Fabric = r.fabric(s)
		}
		if r.peek != nil {
			return peeking{l}
		}
		return l
	}
	h.Parallel = func(t testing.TB, f rdma.Fabric, workers ...func(rdma.Endpoint)) {
		var ws []func(rdma.Endpoint)
		for _, w := range workers {
			ws = append(ws, func(ep rdma.Endpoint) { w(r.sabotage(ep)) })
		}
		good.Parallel(t, lameOf(f).s, ws...)
	}
	h.KillNode = func(t testing.TB, f rdma.Fabric, node int) { good.KillNode(t, lameOf(f).s, node) }
	h.Spawn = func(t testing.TB, f rdma.Fabric, role string, n int) { spawn(t, h, f, role, n) }
	h.Beside = func(t testing.TB, f rdma.Fabric, node int, server func(rdma.Endpoint), clients ...func(rdma.Endpoint)) {
		sabotaged := func(w func(rdma.Endpoint)) func(rdma.Endpoint) {
			return func(ep rdma.Endpoint) { w(r.sabotage(ep)) }
		}
		var ws []func(rdma.Endpoint)
		for _, c := range clients {
			ws = append(ws, sabotaged(c))
		}
		good.Beside(t, lameOf(f).s, node, sabotaged(server), ws...)
	}
	if r.harness != nil {
		r.harness(&h)
	}
	return h
}

// spawn plays the processes' roles by workers of one simulation.
func spawn(t testing.TB, h rdmatest.Harness, f rdma.Fabric, role string, n int) {
	var fs []func(rdma.Endpoint)
	for range n {
		fs = append(fs, func(ep rdma.Endpoint) {
			if err := rdmatest.Role(role)(f, ep); err != nil {
				t.Errorf("%s: %v", role, err)
			}
		})
	}
	h.Parallel(t, f, fs...)
}

// each calls f for the ops of b with one of the verbs.
func each(b *rdma.Batch, f func(op *rdma.Op), verbs ...rdma.Verb) {
	for i := range b.Len() {
		for _, v := range verbs {
			if op := b.Op(i); op.Verb == v {
				f(op)
				break
			}
		}
	}
}

// halve posts the second half of each word on its own.
func halve(s *saboteur, b *rdma.Batch) {
	each(b, func(op *rdma.Op) {
		if len(op.Buf) == 8 {
			half := s.Endpoint.Batch()
			p := half.Alloc(4)
			copy(p, op.Buf[4:])
			half.Write(op.Addr.Add(4), p)
			op.Buf = op.Buf[:4]
			s.Endpoint.Post(half)
			half.Release()
		}
	}, rdma.Write)
}

// widen writes whole words where bytes are asked for.
func widen(_ *saboteur, b *rdma.Batch) {
	each(b, func(op *rdma.Op) {
		shift := op.Addr.Offset() % 8
		p := b.Alloc((int(shift) + len(op.Buf) + 7) &^ 7)
		clear(p)
		copy(p[shift:], op.Buf)
		if end := op.Addr.Offset() - shift + uint64(len(p)); end <= 1<<20 {
			op.Addr, op.Buf = rdma.At(op.Addr.Node(), op.Addr.Offset()-shift), p
		}
	}, rdma.Write)
}

// split makes an atomic a READ and a WRITE.
func split(s *saboteur, b *rdma.Batch) {
	each(b, func(op *rdma.Op) {
		look := s.Endpoint.Batch()
		before := look.Read(op.Addr, 8)
		if rdma.Do(s.Endpoint, look, rdma.Forever) != nil {
			return
		}
		op.Result = binary.LittleEndian.Uint64(before.Buf)
		next := op.Result + op.Value
		if op.Verb == rdma.CompareSwap {
			if next = op.Result; op.Result == op.Expect {
				next = op.Value
			}
		}
		op.Verb, op.Buf = rdma.Write, b.Alloc(8)
		binary.LittleEndian.PutUint64(op.Buf, next)
	}, rdma.FetchAdd, rdma.CompareSwap)
}

// turn lets a batch's first and last WRITE change places.
func turn(_ *saboteur, b *rdma.Batch) {
	var ws []*rdma.Op
	each(b, func(op *rdma.Op) { ws = append(ws, op) }, rdma.Write)
	if len(ws) > 1 {
		x, y := ws[0], ws[len(ws)-1]
		x.Addr, x.Buf, y.Addr, y.Buf = y.Addr, y.Buf, x.Addr, x.Buf
	}
}

// forgive refuses verbs but leaves the connection up.
func forgive(s *saboteur, b *rdma.Batch) {
	for i := range b.Len() {
		op := b.Op(i)
		if off := op.Addr.Offset(); op.Verb.Atomic() && off%8 != 0 || off+uint64(op.Len()) > 1<<20 {
			op.Fail(rdma.ErrAccess)
			s.notes[op] = op.Err
			op.Verb, op.Addr, op.Buf, op.Err = rdma.Read, rdma.At(1, 0), nil, nil
		}
	}
}

// around is a fabric some methods of which are replaced.
type around struct {
	*sim.Sim
	revoke  func(c rdma.ClientID) error
	clients func() []rdma.Client
	close   func() error
}

func (a *around) Revoke(c rdma.ClientID) error { return a.revoke(c) }
func (a *around) Clients() []rdma.Client       { return a.clients() }
func (a *around) Close() error                 { return a.close() }

func unchanged(s *sim.Sim) *around { return &around{s, s.Revoke, s.Clients, s.Close} }

// halfFence makes Revoke refuse what is posted later, but not stop what is in flight.
func halfFence() rule {
	fenced := map[rdma.ClientID]bool{}
	return rule{
		worker: saboteur{post: func(s *saboteur, b *rdma.Batch) error {
			if fenced[s.Endpoint.Client()] {
				return rdma.ErrRevoked
			}
			return s.Endpoint.Post(b)
		}},
		fabric: func(s *sim.Sim) rdma.Fabric {
			clear(fenced)
			a := unchanged(s)
			a.revoke = func(c rdma.ClientID) error { fenced[c] = true; return nil }
			a.clients = func() []rdma.Client {
				all := s.Clients()
				for i := range all {
					all[i].Alive = !fenced[all[i].ID]
				}
				return all
			}
			return a
		},
	}
}

// forgetful is a node's memory that loses every seventh sum.
type forgetful struct {
	rdma.Memory
	n *int
}

func (f *forgetful) FetchAdd(off, n uint64) uint64 {
	if *f.n++; *f.n%7 == 0 {
		return f.Load(off)
	}
	return f.Memory.FetchAdd(off, n)
}

var sink []byte

func breakable() []rule {
	half := halfFence()
	half.broken, half.seen = "Revoke stops what is in flight", []string{"Revoke"}
	return slices.Concat(memoryRules(), lifeRules(), []rule{half}, viewRules(), masterRules(), configRules(),
		messageRules(), ringRules())
}

func memoryRules() []rule {
	return []rule{
		{broken: "fences hold", seen: []string{"FencedAtomic", "FencedReads", "BehindAFence", "BytesAgainstModel"},
			worker: saboteur{before: func(_ *saboteur, b *rdma.Batch) {
				for i := range b.Len() {
					b.Op(i).Fence = false
				}
			}}},
		{broken: "words are whole", seen: []string{"WholeWords", "Processes"}, worker: saboteur{before: halve}},
		{broken: "neighbours are left alone", seen: []string{"Bytes", "BytesAgainstModel"},
			worker: saboteur{before: widen}},
		{broken: "atomics are atomic", seen: []string{"FetchAddSums", "CompareSwapLock", "Processes"},
			worker: saboteur{before: split}},
		{broken: "WRITEs land in posting order", seen: []string{"PostingOrder", "FencedReads"},
			worker: saboteur{before: turn}},
		{broken: "WRITEs take what was in the buffer", seen: []string{"ReleaseInFlight", "Bytes"},
			worker: saboteur{after: func(_ *saboteur, b *rdma.Batch) {
				each(b, func(op *rdma.Op) { clear(op.Buf) }, rdma.Write)
			}}},
		{broken: "large batches are sent", seen: []string{"LargeBatches"},
			worker: saboteur{before: func(_ *saboteur, b *rdma.Batch) {
				for i := 1000; i < b.Len(); i++ {
					b.Op(i).Addr = rdma.At(1, 1<<19)
				}
			}}},
		{broken: "masked CAS has its masks", seen: []string{"MaskedCompareSwap"},
			worker: saboteur{before: func(_ *saboteur, b *rdma.Batch) {
				each(b, func(op *rdma.Op) { op.CompareMask = ^uint64(0) }, rdma.MaskedCompareSwap)
			}}},
		{broken: "a fabric without masked CAS refuses it", seen: []string{"MaskedCompareSwap"},
			harness: func(h *rdmatest.Harness) { h.MaskedCAS = false }},
		{broken: "atomics answer with the word before", seen: []string{"CompareSwapResults", "FollowUps", "Chains"},
			worker: saboteur{answer: func(_ *saboteur, b *rdma.Batch) {
				each(b, func(op *rdma.Op) { op.Result += op.Value }, rdma.CompareSwap, rdma.FetchAdd)
			}}},
		{broken: "access is refused outside memory", seen: []string{"Access"},
			worker: saboteur{before: func(_ *saboteur, b *rdma.Batch) {
				for i := range b.Len() {
					if op := b.Op(i); op.Addr.Offset()+uint64(op.Len()) > 1<<20 {
						op.Addr = rdma.At(op.Addr.Node(), 1<<19)
					}
				}
			}}},
		{broken: "a refused verb breaks the connection", seen: []string{"Access"},
			worker: saboteur{before: forgive, answer: func(s *saboteur, b *rdma.Batch) {
				for i := range b.Len() {
					if err := s.notes[b.Op(i)]; err != nil {
						b.Op(i).Err = err
					}
				}
			}}},
	}
}

func lifeRules() []rule {
	return []rule{
		{broken: "Wait waits for as many chains", seen: []string{"Chains"},
			worker: saboteur{limits: func(n int, d time.Duration) (int, time.Duration) { return max(0, n-1), d }}},
		{broken: "Wait has a limit", seen: []string{"Timeout"},
			worker: saboteur{limits: func(n int, _ time.Duration) (int, time.Duration) { return n, rdma.Forever }}},
		{broken: "nodes die", seen: []string{"NodeDeath"},
			harness: func(h *rdmatest.Harness) { h.KillNode = func(testing.TB, rdma.Fabric, int) {} }},
		{broken: "Revoke fences off", seen: []string{"Revoke"}, fabric: func(s *sim.Sim) rdma.Fabric {
			a := unchanged(s)
			a.revoke = func(rdma.ClientID) error { return nil }
			return a
		}},
		{broken: "identities differ", seen: []string{"Identities"}, worker: saboteur{id: 1}},
		{broken: "handlers know the client that asks", seen: []string{"Calls"},
			handler: func(h rdma.Handler) rdma.Handler {
				return func(m rdma.Memory, r *rdma.Request) error { r.Client = 1; return h(m, r) }
			}},
		{broken: "calls fail when their handler does", seen: []string{"Calls"},
			handler: func(h rdma.Handler) rdma.Handler {
				return func(m rdma.Memory, r *rdma.Request) error { h(m, r); return nil }
			}},
		{broken: "a node's atomics are not lost", seen: []string{"CallsAreAtomic"},
			handler: func(h rdma.Handler) rdma.Handler {
				n := 0
				return func(m rdma.Memory, r *rdma.Request) error { return h(&forgetful{m, &n}, r) }
			}},
		{broken: "calls without a handler fail", seen: []string{"NoHandler"}, worker: saboteur{deaf: true}},
		{broken: "looks take no identity", seen: []string{"Peek"},
			peek: func(s *sim.Sim, name string) (rdma.Endpoint, error) {
				ep, err := s.Open(name)
				return rdma.ReadOnly(ep), err
			}},
		{broken: "looks only READ", seen: []string{"Peek"}, peek: func(s *sim.Sim, name string) (rdma.Endpoint,
			error) {
			return s.Open(name)
		}},
		{broken: "sleeping takes time, and closing closes", seen: []string{"Time", "UseAfterClose", "Identities"},
			worker: saboteur{lazy: true}},
		{broken: "workers draw differently", seen: []string{"Rand"}, worker: saboteur{same: true}},
		{broken: "Close joins tasks", seen: []string{"Tasks", "UseAfterClose"}, fabric: func(s *sim.Sim) rdma.Fabric {
			a := unchanged(s)
			a.close = func() error { return nil }
			return a
		}},
		{broken: "bytes are counted", seen: []string{"Counters"},
			worker: saboteur{answer: func(s *saboteur, _ *rdma.Batch) { s.Counters().BytesRead++ }}},
		{broken: "waiting twice is one trip", seen: []string{"Trips", "Counters"},
			worker: saboteur{answer: func(s *saboteur, _ *rdma.Batch) { s.Counters().Trips++ }}},
		{broken: "batches allocate nothing", seen: []string{"Allocations"},
			worker: saboteur{after: func(*saboteur, *rdma.Batch) { sink = make([]byte, 64) }}},
	}
}

// TestSuiteHasTeeth breaks each rule and expects the suite to see it, and no test of the suite to
// see nothing ever.
func TestSuiteHasTeeth(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		t.Fatal(err)
	}
	defer flag.Set("rapid.nofailfile", "false")
	cases := map[string]func(testing.TB, rdmatest.Harness){}
	for _, c := range rdmatest.Cases() {
		cases[c.Name] = c.Test
	}
	o := sim.Hostile(1)
	o.AllowMixing = true // the suite has to see it, not sim
	o.MTU, o.CountRings = 256, true
	o.MaxEvents = 60_000 // a test that ends by a deadline would take its time
	bites := map[string]bool{}
	for _, r := range breakable() {
		for _, name := range r.seen {
			failed, said := record(func(tb testing.TB) { cases[name](tb, r.harnessOf(o)) })
			if !failed {
				t.Errorf("rule %q is broken, and %s does not see it: %s", r.broken, name, said)
			}
			t.Logf("%s: %s: %.160s", r.broken, name, said)
			bites[name] = true
		}
	}
	honest := rule{}
	for _, c := range rdmatest.Cases() {
		if !bites[c.Name] {
			t.Errorf("nothing shows that %s can fail", c.Name)
		}
		o.AllowMixing = false
		if failed, said := record(func(tb testing.TB) { c.Test(tb, honest.harnessOf(o)) }); failed {
			t.Errorf("no rule is broken, but %s fails: %s", c.Name, said)
		}
	}
}

func TestRecorder(t *testing.T) {
	failed, said := record(func(t testing.TB) {
		defer t.Log("unwound")
		t.Cleanup(func() { t.Log("cleaned up") })
		t.Fatal(errors.New("oops"))
		t.Log("never")
	})
	if want := "oops\nunwound\ncleaned up"; !failed || said != want {
		t.Errorf("failed is %v, said %q, want %q", failed, said, want)
	}
	if failed, _ := record(func(t testing.TB) { t.Skip("not here") }); failed {
		t.Error("skipping is failing")
	}
}
