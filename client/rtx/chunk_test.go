package rtx

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// fill makes objects of some bytes until the pool is full.
func fill(w *Worker, bytes int) (all []Ref, err error) {
	for {
		r, err := create(w, strings.Repeat("x", bytes))
		if errors.Is(err, client.ErrFull) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
}

func freeAll(w *Worker, all []Ref) (err error) {
	for _, r := range all {
		err = errors.Join(err, w.Run(func(tx *Tx) error { return tx.Free(r) }))
	}
	return err
}

// TestReshape: a chunk in which nothing is used gets buffers of another size,
// when no buffer of that size is left. A chunk in which something is used keeps
// its size. No pointer comes back.
func TestReshape(t *testing.T) {
	f, l := pool(t, Shape{Objects: 16 * ChunkObjects, Memory: 512 << 10, Sizes: []int{500, 1000}, Chunk: 8192})
	w := worker(t, f, l, Options{Quarantine: time.Millisecond})
	var kept []Ref
	seen := map[Pointer]bool{}
	for _, c := range []struct{ bytes, least int }{{1000, 600}, {500, 1100}, {1000, 600}, {500, 1100}} {
		all, err := fill(w, c.bytes)
		must(t, err)
		if len(all) < c.least {
			t.Errorf("got %d objects of %d bytes, want %d", len(all), c.bytes, c.least)
		}
		for _, r := range all {
			m, _, err := w.look(l.Meta(r), 0)
			if must(t, err); seen[m.Pointer.use()] {
				t.Fatalf("want a pointer that was not there before: %v has %x", r, m.Pointer)
			}
			seen[m.Pointer.use()] = true
			wantData(t, w, "["+strings.Repeat("x", c.bytes)+"]", r)
		}
		kept = append(kept, all[0])
		must(t, freeAll(w, all[1:]))
	}
	for i, bytes := range []int{1000, 500, 1000, 500} {
		wantData(t, w, "["+strings.Repeat("x", bytes)+"]", kept[i])
	}
	u, err := w.Check(func(rdma.ClientID) bool { return true })
	if must(t, err); u.Objects != len(kept) {
		t.Errorf("%+v", u)
	}
	must(t, w.Close())
}

// TestDiesWhileReshaping: a client dies behind any verb while it gives a chunk
// another size. The chunk is there for other clients then, and nothing is lost.
func TestDiesWhileReshaping(t *testing.T) {
	virtual(t)
	for verb := uint64(1); ; verb++ {
		if ended := diesWhileReshaping(t, verb); ended {
			if verb < 10 {
				t.Errorf("it has sent %d verbs", verb)
			}
			return
		}
	}
}

func diesWhileReshaping(t *testing.T, verb uint64) (ended bool) {
	l, err := NewLayout(Shape{
		Nodes: 1, Memory: simMemory, Clients: 8, Objects: 4 * ChunkObjects, Sizes: []int{64, 500}, Chunk: 4096,
	})
	must(t, err)
	s := sim.New(sim.Options{
		Seed: verb, Nodes: 1, Memory: simMemory, Clients: 8, Handler: node.Serve, Tear: true, Reorder: true,
	})
	defer s.Close()
	must(t, Prepare(s, l))
	var failed error
	var first, again int
	work := func(name string, f func(w *Worker) error) *sim.Worker {
		return s.Go(name, func(ep rdma.Endpoint) {
			w, err := Open(ep, l, Options{Drift: 100 * time.Microsecond, Timeout: time.Second})
			if err == nil {
				err = errors.Join(f(w), w.Close())
			}
			failed = errors.Join(failed, err)
		})
	}
	work("founder", func(w *Worker) error {
		all, err := fill(w, 500)
		first = len(all)
		return errors.Join(err, freeAll(w, all))
	})
	must(t, errors.Join(s.Run(), failed))
	victim := work("victim", func(w *Worker) error {
		_, err := create(w, "small")
		return err
	})
	s.CrashAt(victim, verb)
	ended = true
	victim.WhenCrashed(func() { ended = false })
	must(t, errors.Join(s.Run(), failed))
	work("heir", func(w *Worker) error {
		err := adoptAll(s, w)
		for _, bytes := range []int{64, 500} {
			all, filled := fill(w, bytes)
			again = len(all)
			for _, r := range all {
				data, read := get(w, r)
				if err = errors.Join(err, read); read == nil && len(data[0]) != bytes {
					err = errors.Join(err, errors.New("other data"))
				}
			}
			err = errors.Join(err, filled, freeAll(w, all))
		}
		return err
	})
	must(t, errors.Join(s.Run(), failed))
	if again < first*9/10 {
		t.Errorf("behind verb %d there is room for %d objects, and was for %d", verb, again, first)
	}
	return ended
}

// TestListedOfNoChunk: listed metadata of a chunk that was given back does not
// keep a client from claiming more.
func TestListedOfNoChunk(t *testing.T) {
	f, l := pool(t, Shape{Objects: 4 * ChunkObjects, Nodes: 1})
	founder := worker(t, f, l, Options{})
	all, err := fill(founder, 8)
	must(t, err)
	must(t, freeAll(founder, all))
	must(t, founder.Close())
	ep, err := f.Open("sleepless")
	must(t, err)
	w, err := Open(sleepless{ep, t}, l, Options{})
	must(t, err)
	made := func(n int) (refs []Ref) {
		for range n {
			r, err := create(w, "some")
			must(t, err)
			refs = append(refs, r)
		}
		return refs
	}
	first := made(ChunkObjects)
	must(t, freeAll(w, first[:1]))
	made(2 * ChunkObjects) // a chunk in which one is free makes room for another, and this one for a third
	must(t, w.Close())
}

// TestFreedInAFullPool: a worker that has looked everywhere in vain, and then frees an object in
// chunks which are not its own, looks again.
func TestFreedInAFullPool(t *testing.T) {
	f, l := pool(t, Shape{Objects: 4 * ChunkObjects, Nodes: 1})
	founder := worker(t, f, l, Options{})
	all, err := fill(founder, 8)
	must(t, err)
	must(t, founder.Close())
	w := worker(t, f, l, Options{})
	_, err = create(w, "more")
	wantError(t, err, client.ErrFull)
	must(t, w.Run(func(tx *Tx) error { return tx.Free(all[0]) }))
	_, err = create(w, "more")
	must(t, err)
	must(t, w.Close())
}

// TestIdle: many workers that have used memory of each size on each node, and do nothing more,
// leave half of the pool to one that comes.
func TestIdle(t *testing.T) {
	for name, s := range map[string]Shape{
		"buffers":  {Memory: 200 << 10, Objects: 40 * ChunkObjects},
		"metadata": {Memory: 800 << 10, Objects: 20 * ChunkObjects},
	} {
		t.Run(name, func(t *testing.T) {
			s.Clients, s.Sizes, s.Chunk = 17, []int{96, 480, 992}, 4096
			f, l := pool(t, s)
			all, err := fill(worker(t, f, l, Options{}), 300)
			must(t, err)
			f, _ = pool(t, s)
			var idle []*Worker
			for range s.Clients - 1 {
				w := worker(t, f, l, Options{})
				idle = append(idle, w)
				var refs []Ref
				for _, bytes := range l.Sizes {
					for range l.Nodes {
						r, err := create(w, strings.Repeat("x", bytes))
						must(t, err)
						refs = append(refs, r)
					}
				}
				must(t, freeAll(w, refs))
			}
			w := worker(t, f, l, Options{})
			again, err := fill(w, 300)
			if must(t, err); 2*len(again) < len(all) {
				t.Errorf("got %d objects beside %d workers that do nothing, and %d alone", len(again), len(idle),
					len(all))
			}
			for _, w := range append(idle, w) {
				must(t, w.Close())
			}
		})
	}
}

// TestOwnFirst: a worker that has its share uses its own chunks on any node before it claims
// others.
func TestOwnFirst(t *testing.T) {
	f, l := pool(t, Shape{Memory: 200 << 10, Objects: 16 * ChunkObjects, Sizes: []int{96}, Chunk: 4096})
	w := worker(t, f, l, Options{})
	for range l.buffers(0) {
		_, err := create(w, "some")
		must(t, err)
	}
	if w.stats.Claims != 2 {
		t.Errorf("got %d chunks for what fits one of data and one of metadata", w.stats.Claims)
	}
	must(t, w.Close())
}

// TestStepAside: a transaction that looks for memory in what other clients have left holds no lock
// meanwhile. What it finds is there for its next attempt, also if buffers rest for long.
func TestStepAside(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1, Memory: 200 << 10, Nodes: 3, Objects: 16 * ChunkObjects, Sizes: []int{96, 480},
		Chunk: 4096, Clients: 4})
	founder := worker(t, f, l, Options{})
	for _, bytes := range []int{96, 480} {
		all, err := fill(founder, bytes)
		must(t, err)
		must(t, freeAll(founder, all))
	}
	must(t, founder.Close())
	w, hooks := hookedWorker(t, f, l, Options{Quarantine: 5 * time.Millisecond, Timeout: 2 * time.Second})
	r, looks, calls := newRaw(t, f, l), 0, 0
	var all []Ref
	var look func()
	look = func() {
		hooks[stepReadTable] = look
		if looks++; r.meta(l.Root(0)).Lock.Held() {
			t.Error("a lock is held while it looks for memory")
		}
	}
	look()
	add := func() error {
		var made Ref
		err := w.Run(func(tx *Tx) (err error) {
			calls++
			if err := tx.Lock(l.Root(0)); err != nil && !errors.Is(err, ErrNoObject) {
				return err
			}
			if made, err = tx.New(make([]byte, 480)); err != nil {
				return err
			}
			return tx.Write(l.Root(0), []byte("root"))
		})
		if err == nil {
			all = append(all, made)
		}
		return err
	}
	err := add()
	must(t, err)
	if looks < 3 || calls != 3 {
		t.Errorf("got %d looks, and %d attempts, want one that looks for metadata, one for buffers, and a last one",
			looks, calls)
	}
	for err == nil {
		err = add()
	}
	wantError(t, err, client.ErrFull)
	// What one object had is found, on whichever nodes it lies.
	for k := range 30 {
		must(t, freeAll(w, all[k:k+1]))
		must(t, add())
	}
	must(t, w.Close())
}

// sleepless is an endpoint of a client that finds something at its first look,
// and so does not sleep.
type sleepless struct {
	rdma.Endpoint
	t *testing.T
}

func (e sleepless) Sleep(time.Duration) { e.t.Error("a look found nothing") }

// slow is an endpoint whose clock goes on by a part of a second with each batch of a step.
type slow struct {
	rdma.Endpoint
	step rdma.Step
	each time.Duration
	late time.Duration // what it has gone on by
}

func (e *slow) Now() time.Duration { return e.Endpoint.Now() + e.late }

func (e *slow) Post(b *rdma.Batch) error {
	if b.Step() == e.step {
		e.late += e.each
	}
	return e.Endpoint.Post(b)
}

// TestOneWalk: a worker that looks everywhere in vain walks over the chunks of others once a look,
// and once more for empty ones of other sizes.
func TestOneWalk(t *testing.T) {
	f, l := pool(t, Shape{Objects: 16 * ChunkObjects, Nodes: 1, Memory: 512 << 10, Sizes: []int{500}, Chunk: 8192})
	founder := worker(t, f, l, Options{})
	_, err := fill(founder, 500)
	must(t, err)
	must(t, founder.Close())
	ep, err := f.Open("slow")
	must(t, err)
	e := &slow{Endpoint: ep, step: stepReadTable, each: 1}
	w := open(t, e, l, Options{})
	e.late = 0
	_, err = create(w, "more")
	if wantError(t, err, client.ErrFull); e.late != 2*mostLooks {
		t.Errorf("got %d reads of tables, want %d", e.late, 2*mostLooks)
	}
	must(t, w.Close())
}
