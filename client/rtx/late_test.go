package rtx

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestFenced: a verb of a dead client that is still on its way does no harm to what is made of its
// memory and its log.
func TestFenced(t *testing.T) {
	virtual(t)
	landed := 0
	for verb := uint64(1); verb <= 30; verb++ {
		faults := sim.Faults{{Kind: sim.FlyFault, Client: "dead", Verb: verb, For: 20 * time.Millisecond},
			{Kind: sim.CrashFault, Client: "dead", Verb: verb}}
		s, l := world(t, Shape{Roots: 2, Objects: 128, Chunk: 1024, Memory: 28 << 10},
			sim.Options{Seed: verb, Faults: faults})
		a, b := l.Root(0), l.Root(1)
		o := Options{Drift: 100 * time.Microsecond, Quarantine: 1}
		first, err := s.Open("first")
		must(t, err)
		w := open(t, first, l, o)
		must(t, errors.Join(set(w, "old", a, b), w.Close()))
		dead, _ := enter(t, s, l, o, "dead", func(w *Worker) {
			_ = set(w, "dead's", a)
			_ = set(w, "dead's", a, b)
			_, _ = create(w, "dead's")
			landed++
		})
		dead.WhenCrashed(func() {
			enter(t, s, l, o, "other", func(w *Worker) {
				must(t, adoptAll(s, w))
				for range 20 {
					must(t, errors.Join(set(w, "other's", a), set(w, "other's", b)))
				}
				for made := 0; ; made++ { // in all buffers that there are
					if _, err := create(w, "other's"); err != nil {
						if wantError(t, err, client.ErrFull); made > 120 {
							t.Errorf("%d objects fit", made)
						}
						break
					}
				}
				w.ep.Sleep(40 * time.Millisecond)
				wantData(t, w, "[other's other's]", a, b)
				if _, err := w.Check(func(rdma.ClientID) bool { return true }); err != nil {
					t.Errorf("verb %d: %v", verb, err)
				}
			})
		})
		must(t, s.Run())
	}
	if landed > 20 {
		t.Errorf("the client came to its end %d times", landed)
	}
}

// TestDataElsewhere: data on another node than its object's is there before the pointer names it.
func TestDataElsewhere(t *testing.T) {
	s, l := world(t, Shape{Nodes: 2, Roots: 1}, sim.Options{Seed: 1, FlyProb: 0.2, FlyMax: 50 * time.Microsecond})
	a, rests := l.Root(0), Options{Quarantine: 8 * time.Millisecond}
	first, err := s.Open("first")
	must(t, err)
	must(t, set(open(t, first, l, rests), "old", a))
	done := false
	_, w := enter(t, s, l, rests, "writer", func(w *Worker) {
		for range 50 {
			must(t, w.Run(func(tx *Tx) error { return errors.Join(tx.Lock(a), tx.Write(a, []byte("new"))) }))
		}
		done = true
	})
	w.memory.heap(a.node(l), 0).Empty = true // and no client has given a chunk back
	torn := 0
	enter(t, s, l, Options{}, "reader", func(w *Worker) {
		for !done {
			b := w.ep.Batch()
			meta := b.Read(l.Meta(a), MetaBytes)
			must(t, rdma.Do(w.ep, b, time.Second))
			p := MetaOf(meta.Buf).Pointer
			b.Release()
			b = w.ep.Batch()
			data := b.Read(l.buffer(p), l.bufferBytes(p.class()))
			must(t, rdma.Do(w.ep, b, time.Second))
			if _, _, ok := l.Decode(data.Buf, p); !ok {
				torn++
			}
			b.Release()
		}
	})
	must(t, s.Run())
	if torn > 0 { // no buffer is used again in that time
		t.Errorf("a pointer named what was not there %d times", torn)
	}
	if p := newRaw(t, s, l).meta(a).Pointer; l.buffer(p).Node() == l.Meta(a).Node() {
		t.Error("the data is on the object's node")
	}
}

func (r Ref) node(l *Layout) int { return l.Meta(r).Node() }

// TestRetired: an identity that has used up its sequences changes nothing more,
// nor does its next holder.
func TestRetired(t *testing.T) {
	f, l := pool(t, Shape{Clients: 2, Roots: 1, SequenceBits: 6})
	a := l.Root(0)
	other := worker(t, f, l, Options{})
	must(t, set(other, "other's", a))
	ep, err := f.Open("retires")
	must(t, err)
	w := open(t, ep, l, Options{})
	seen, commits := map[Lock]bool{}, 0
	for r := (&raw{t, other.ep, l}); ; commits++ {
		err := set(w, "data", a)
		if err != nil {
			wantError(t, err, ErrRetired)
			break
		}
		must(t, w.settle())
		if k := r.meta(a).Lock; seen[k] {
			t.Fatalf("lock %#x is back behind %d transactions", k, commits)
		} else {
			seen[k] = true
		}
	}
	if commits < 32 || commits > 63 {
		t.Errorf("it retired behind %d transactions", commits)
	}
	must(t, errors.Join(w.Close(), ep.Close()))
	next := worker(t, f, l, Options{})
	if next.id != w.id {
		t.Fatalf("client %d, and then %d", w.id, next.id)
	}
	wantError(t, set(next, "next's", a), ErrRetired)
	wantData(t, next, "[data]", a)
	must(t, set(other, "other's", a))
}

// TestTags: a pointer comes back to an object only when as many quarantines have passed as there
// are tags.
func TestTags(t *testing.T) {
	const quarantine = time.Millisecond
	s, l := world(t, Shape{Roots: 1, TagBits: 3, Chunk: 1024}, sim.Options{Seed: 1})
	a := l.Root(0)
	ep, err := s.Open("worker")
	must(t, err)
	w := open(t, ep, l, Options{Quarantine: quarantine})
	seen, back := map[Pointer]time.Duration{}, 0
	r := &raw{t, ep, l}
	for range 4000 {
		must(t, set(w, "data", a))
		must(t, w.settle())
		w.ep.Sleep(20 * time.Microsecond)
		p := r.meta(a).Pointer
		if at, ok := seen[p]; ok {
			back++
			if took := s.Now() - at; took < 7*quarantine {
				t.Errorf("pointer %#x is back within %v", uint64(p), took)
			}
		}
		seen[p] = s.Now()
	}
	if back == 0 {
		t.Error("no pointer came back")
	}
}

// TestLateVerbs: verbs that a transaction gave up land late, and do no harm to the next ones of the
// same client.
func TestLateVerbs(t *testing.T) {
	virtual(t)
	for _, o := range []Options{{}, {Log: true}} {
		for verb := uint64(1); verb <= 14; verb++ {
			faults := sim.Faults{{Kind: sim.FlyFault, Client: "late", Verb: verb, For: 5 * time.Millisecond}}
			s, l := world(t, Shape{Roots: 2, Objects: 64, Chunk: 1024}, sim.Options{Seed: verb, Faults: faults})
			o.Drift, o.Timeout, o.Quarantine = 100*time.Microsecond, time.Millisecond, 1
			a := l.Root(0)
			first, err := s.Open("first")
			must(t, err)
			must(t, set(open(t, first, l, Options{}), "old", a))
			failed, wrote := 0, "old"
			maybe := ""
			enter(t, s, l, o, "late", func(w *Worker) {
				for n := range 40 {
					data := fmt.Sprint("data ", n)
					err := set(w, data, a)
					switch {
					case err == nil:
						wrote, maybe = data, ""
					case errors.Is(err, client.ErrUncertain):
						maybe = data
						failed++
					case errors.Is(err, rdma.ErrTimeout):
						failed++
						w.ep.Sleep(200 * time.Microsecond)
					default:
						t.Errorf("verb %d: %v", verb, err)
					}
					if n == 1 {
						w.ep.Sleep(500 * time.Microsecond)
					}
				}
			})
			must(t, s.Run())
			behind := o
			behind.Timeout = time.Second
			w := open(t, first, l, behind)
			got, err := get(w, a)
			if err != nil || got[0] != wrote && got[0] != maybe {
				t.Errorf("verb %d: %v, %v, and %q was written, or %q", verb, got, err, wrote, maybe)
			}
			if failed == 0 {
				t.Errorf("verb %d: nothing was late", verb)
			}
			if _, err := w.Check(func(rdma.ClientID) bool { return true }); err != nil {
				t.Errorf("verb %d: %v", verb, err)
			}
		}
	}
}

// TestUncertain: a transaction that has no answer to its deciding verb is
// uncertain. Its outcome is known before the client's next transaction.
func TestUncertain(t *testing.T) {
	for _, logged := range []bool{false, true} {
		for _, took := range []bool{false, true} {
			f, l := pool(t, Shape{Nodes: 1, Roots: 1})
			a := l.Root(0)
			ep, err := f.Open("worker")
			must(t, err)
			step := stepSwapPointer
			if logged {
				step = stepDecide
			}
			h := &hooked{Endpoint: ep, before: map[rdma.Step]func(){}}
			failing := &replaceable{fault.New(h, fault.Fault{Step: step, Err: rdma.ErrTimeout})}
			w := open(t, failing, l, Options{Log: logged, Drift: long})
			other := worker(t, f, l, Options{Drift: long})
			must(t, set(other, "old", a))
			r := newRaw(t, f, l)
			if took { // it landed, and only the answer is lost
				failing.Endpoint = &answerless{Endpoint: ep, step: step, err: rdma.ErrTimeout}
			}
			err = set(w, "new", a)
			wantError(t, err, client.ErrUncertain)
			wantError(t, err, rdma.ErrTimeout)
			if !r.meta(a).Lock.Held() {
				t.Error("the lock was released")
			}
			want := "[old]"
			if took {
				want = "[new]"
			}
			wantData(t, w, want, a)
			wantData(t, other, want, a)
			must(t, set(w, "again", a))
			wantData(t, other, "[again]", a)
			if _, err := w.Check(func(rdma.ClientID) bool { return true }); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestOutOfReach: where a node is out of reach for a moment, at any step, a transaction goes on,
// and is done once, whether the verb landed or not.
func TestOutOfReach(t *testing.T) {
	for _, step := range []rdma.Step{stepReadMeta, stepReadData, stepLockEarly, stepLock, stepDecide, stepSwapPointer,
		stepUnlock} {
		for _, took := range []bool{false, true} {
			f, l := pool(t, Shape{Nodes: 1, Roots: 2})
			a, b := l.Root(0), l.Root(1)
			ep, err := f.Open("worker")
			must(t, err)
			failing := &replaceable{ep}
			w := open(t, failing, l, Options{Drift: long})
			must(t, set(w, "0", a, b))
			must(t, w.settle())
			if failing.Endpoint = fault.New(ep, fault.Fault{Step: step, Err: rdma.ErrNodeDown}); took {
				failing.Endpoint = &answerless{Endpoint: ep, step: step, err: rdma.ErrNodeDown}
			}
			ran, n := 0, byte('0')
			err = w.Run(func(tx *Tx) error {
				ran++
				if step == stepLockEarly {
					if err := tx.Lock(a); err != nil {
						return err
					}
				}
				for _, r := range []Ref{a, b} {
					p, err := tx.Read(r)
					if err != nil {
						return err
					}
					n = p[0]
					if err := tx.Write(r, []byte{'1'}); err != nil {
						return err
					}
				}
				return nil
			})
			must(t, err)
			wantData(t, w, "[1 1]", a, b)
			if again := step != stepUnlock && step != stepSwapPointer &&
				(step != stepDecide || !took); (ran == 2) != again || n != '0' {
				t.Errorf("%v, %v: the closure ran %d times, and has seen %c", step, took, ran, n)
			}
			if _, err := w.Check(func(rdma.ClientID) bool { return true }); err != nil {
				t.Error(err)
			}
		}
	}
}

// answerless is an endpoint that loses the answer to a step, once.
type answerless struct {
	rdma.Endpoint
	step rdma.Step
	err  error
}

func (e *answerless) Post(b *rdma.Batch) error {
	if b.Step() != e.step {
		return e.Endpoint.Post(b)
	}
	err := e.Endpoint.Post(b)
	for i := range b.Len() {
		b.Op(i).Fail(e.err)
	}
	e.step = ""
	return err
}

// TestStale: a transaction goes on when the pool's view changes at any of its
// steps, and takes effect once.
func TestStale(t *testing.T) {
	for _, step := range Steps {
		for _, logged := range []bool{false, true} {
			f, l := pool(t, Shape{Roots: 2, Objects: 64})
			a, b := l.Root(0), l.Root(1)
			w, before := hookedWorker(t, f, l, Options{Drift: long})
			must(t, set(w, "0", a, b))
			before[step] = func() {
				v := f.View()
				if ok, err := f.Advance(rdma.State{Epoch: v.Epoch}, rdma.State{Epoch: v.Epoch + 1}); !ok || err != nil {
					t.Fatal(ok, err)
				}
				must(t, f.Fence(v.Epoch+1))
			}
			ran := 0
			err := w.Run(func(tx *Tx) error {
				ran++
				if !logged {
					return tx.Write(a, []byte("1"))
				}
				return errors.Join(tx.Lock(a), tx.Write(a, []byte("1")), tx.Write(b, []byte("1")))
			})
			if err != nil || ran > 2 {
				t.Errorf("a view that changes before step %q, with a log: %v: %v, and it ran %d times", step, logged,
					err, ran)
			}
			delete(before, step)
			wantData(t, w, map[bool]string{false: "[1 0]", true: "[1 1]"}[logged], a, b)
		}
	}
}

// TestNodeDies: what is on other nodes goes on, and what is not says so.
func TestNodeDies(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 2, Roots: 4})
	w := worker(t, f, l, Options{Timeout: time.Second})
	must(t, set(w, "there", l.Root(0), l.Root(1), l.Root(2), l.Root(3)))
	must(t, f.(rdma.NodeKiller).KillNode(1-l.log(w.id).Node()))
	alive, dead := l.Root(0), l.Root(1)
	if alive.node(l) != l.log(w.id).Node() {
		alive, dead = dead, alive
	}
	wantData(t, w, "[there]", alive)
	must(t, set(w, "new", alive))
	_, err := get(w, alive, dead)
	wantError(t, err, rdma.ErrNodeDown)
	wantError(t, set(w, "lost", alive, dead), rdma.ErrNodeDown)
	wantData(t, w, "[new]", alive)
	must(t, set(w, "newer", alive))
	wantData(t, w, "[newer]", alive)
}

// TestNodeGone: what was decided when a node died is finished on the others, once the pool's view
// says that the node is gone.
func TestNodeGone(t *testing.T) {
	for _, repair := range []bool{false, true} {
		f, l := pool(t, Shape{Nodes: 2, Roots: 2})
		w, before := hookedWorker(t, f, l, Options{Drift: short, Timeout: time.Second})
		other := worker(t, f, l, Options{Drift: short, Timeout: 10 * short})
		dead := 1 - l.log(w.id).Node()
		alive, lost := l.Root(0), l.Root(1)
		if alive.node(l) == dead {
			alive, lost = lost, alive
		}
		must(t, set(w, "old", alive, lost))
		before[stepSwapPointer] = func() { must(t, f.(rdma.NodeKiller).KillNode(dead)) }
		err := set(w, "new", alive, lost)
		wantError(t, err, rdma.ErrNodeDown)
		wantError(t, err, client.ErrUncertain)
		_, err = get(other, alive) // the lock is held, and the rest of the transaction out of reach
		wantError(t, err, rdma.ErrNodeDown)
		e := f.View().Epoch
		for _, change := range []func() (bool, error){
			func() (bool, error) { return f.Advance(rdma.State{Epoch: e}, rdma.State{Epoch: e + 1, Busy: true}) },
			func() (bool, error) { return f.SetMember(e+1, dead, rdma.Member{}, rdma.Member{Gone: true}) },
			func() (bool, error) { return f.Advance(rdma.State{Epoch: e + 1, Busy: true}, rdma.State{Epoch: e + 1}) },
		} {
			if ok, err := change(); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if repair {
			wantData(t, other, "[new]", alive)
		}
		must(t, set(w, "newer", alive))
		wantData(t, other, "[newer]", alive)
		if err := errors.Join(w.Close(), other.Close()); err != nil { // the other one has lost its log
			t.Errorf("the workers cannot close: %v", err)
		}
	}
}
