package dtx

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// fill makes objects of some bytes until the pool is full.
func fill(t *testing.T, w *Worker, bytes int) (all []Ref) {
	t.Helper()
	for {
		r, err := create(w, string(make([]byte, bytes)))
		if errors.Is(err, client.ErrFull) {
			return all
		}
		must(t, err)
		all = append(all, r)
	}
}

// TestLargerPlace: an object takes a larger place when none of its size is left,
// since chunks keep their sizes.
func TestLargerPlace(t *testing.T) {
	f, l := pool(t, Shape{Memory: 1 << 20})
	w := worker(t, f, l, Options{})
	all := fill(t, w, 1000)
	must(t, w.Run(func(tx *Tx) error { return tx.Free(all[0]) }))
	r, err := create(w, "small")
	must(t, err)
	wantData(t, w, "[small]", r)
	must(t, set(w, "other", r))
	wantData(t, w, "[other]", r)
	must(t, w.Close())
}

// TestListedOfNoChunk: a listed place of a chunk that was given back does not
// keep a client from claiming more.
func TestListedOfNoChunk(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1, Memory: 128 << 10, Sizes: []int{64}, Chunk: 4096, Clients: 4})
	made := func(w *Worker, n int) (refs []Ref) {
		for range n {
			r, err := create(w, "some")
			must(t, err)
			refs = append(refs, r)
		}
		return refs
	}
	freed := func(w *Worker, refs []Ref) {
		for _, r := range refs {
			must(t, w.Run(func(tx *Tx) error { return tx.Free(r) }))
		}
	}
	founder := worker(t, f, l, Options{})
	freed(founder, made(founder, int(l.chunks.Count)*l.perChunk(0)))
	must(t, founder.Close())
	ep, err := f.Open("sleepless")
	must(t, err)
	w := open(t, sleepless{ep, t}, l, Options{})
	first := made(w, l.perChunk(0))
	other := worker(t, f, l, Options{})
	freed(other, first[:1])
	must(t, other.Close())
	made(w, 2*l.perChunk(0)) // a chunk in which one is free makes room for another, and this one for a third
	must(t, w.Close())
}

// TestFreedInAFullPool: a worker that has looked everywhere in vain, and then frees an object in a
// chunk which is not its own, looks again.
func TestFreedInAFullPool(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1, Memory: 128 << 10, Sizes: []int{64}, Chunk: 4096})
	founder := worker(t, f, l, Options{})
	all := fill(t, founder, 64)
	must(t, founder.Close())
	w := worker(t, f, l, Options{})
	_, err := create(w, "more")
	wantError(t, err, client.ErrFull)
	must(t, w.Run(func(tx *Tx) error { return tx.Free(all[0]) }))
	_, err = create(w, "more")
	must(t, err)
	must(t, w.Close())
}

// TestIdle: many workers that have used memory of each size on each node, and do nothing more,
// leave half of the pool to one that comes.
func TestIdle(t *testing.T) {
	s := Shape{Nodes: 2, Memory: 200 << 10, Clients: 17, Sizes: []int{400, 800}, Chunk: 4096}
	f, l := pool(t, s)
	all := fill(t, worker(t, f, l, Options{}), 800)
	f, _ = pool(t, s)
	var idle []*Worker
	for range l.Clients - 1 {
		w := worker(t, f, l, Options{})
		idle = append(idle, w)
		for _, bytes := range []int{800, 800, 400, 400} {
			r, err := create(w, string(make([]byte, bytes)))
			must(t, err)
			must(t, w.Run(func(tx *Tx) error { return tx.Free(r) }))
		}
	}
	w := worker(t, f, l, Options{})
	if again := fill(t, w, 800); 2*len(again) < len(all) {
		t.Errorf("got %d objects beside %d workers that do nothing, and %d alone", len(again), len(idle), len(all))
	}
	for _, w := range append(idle, w) {
		must(t, w.Close())
	}
}

// TestOwnFirst: a worker that has its share uses its own chunks on any node before it claims
// others.
func TestOwnFirst(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 2, Memory: 128 << 10, Sizes: []int{64}, Chunk: 4096})
	w := worker(t, f, l, Options{})
	for range l.perChunk(0) {
		_, err := create(w, "some")
		must(t, err)
	}
	if w.stats.Claims != 1 {
		t.Errorf("got %d chunks for what fits one", w.stats.Claims)
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
