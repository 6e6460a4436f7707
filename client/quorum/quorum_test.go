package quorum

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

func worker(t *testing.T, nodes, attempts int) (*shm.Fabric, *Quorum, []rdma.Addr) {
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: 4096, Clients: 4}, nil)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	for n := range nodes {
		must(t, f.Commit(n, 0, f.Size()))
	}
	ep, err := f.Open(t.Name())
	must(t, err)
	q := New(ep, Options{Attempts: attempts})
	t.Cleanup(func() {
		q.Release()
		ep.Close()
	})
	return f, &q, words(nodes)
}

// TestVerdicts: a replica that never counts is made up for by the others, as long as there are enough; one that is asked
// again counts when it does, and not for ever.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name  string
		judge func(r, asked int) Verdict
		want  error
		done  Mask
		asked [5]int
	}{
		{"a mere majority", func(r, asked int) Verdict { return Done }, nil, 0b01110, [5]int{0, 1, 1, 1, 0}},
		{"one refuses", func(r, asked int) Verdict {
			if r == 2 {
				return Never
			}
			return Done
		}, nil, 0b11011, [5]int{1, 1, 1, 1, 1}},
		{"three refuse", func(r, asked int) Verdict {
			if r < 3 {
				return Never
			}
			return Done
		}, ErrRefused, 0b11000, [5]int{1, 1, 1, 1, 1}},
		{"one counts at last", func(r, asked int) Verdict {
			if r == 2 && asked < 3 {
				return Again
			}
			return Done
		}, nil, 0b01110, [5]int{0, 1, 3, 1, 0}},
		{"three never count", func(r, asked int) Verdict {
			if r < 3 {
				return Again
			}
			return Done
		}, ErrAttempts, 0b11000, [5]int{4, 4, 4, 1, 1}},
	} {
		_, q, at := worker(t, 5, 4)
		var asked [5]int
		err := q.Gather(at, 1, All(5), 3, func(b *rdma.Batch, r int) error {
			asked[r]++
			return readWord(at)(b, r)
		}, func(r int, _ *rdma.Batch, _ Chain) Verdict { return c.judge(r, asked[r]) })
		if !errors.Is(err, c.want) || q.Done() != c.done || asked != c.asked {
			t.Errorf("%s: %v; %05b are done after %v, want %05b after %v", c.name, err, q.Done(), asked, c.done, c.asked)
		}
	}
}

// TestShun: a node that failed is asked last in the steps behind.
func TestShun(t *testing.T) {
	f, q, at := worker(t, 3, 4)
	must(t, f.KillNode(0))
	for step := range 3 {
		must(t, q.Gather(at, 0, All(3), 2, readWord(at), done))
		if q.Done() != 0b110 || q.Stats().Widened != 1 || !q.Avoids(0) || q.Avoids(1) {
			t.Errorf("step %d: %03b answered, %+v", step, q.Done(), q.Stats())
		}
	}
}

// TestRejoinsWhenFull: a step that asked a replica many times before a fence cuts it off goes on; and however often fences do, what
// was read stays.
func TestRejoinsWhenFull(t *testing.T) {
	for before := range 12 {
		_, q, at := worker(t, 3, 100)
		joined, asked := 0, 0
		q.Rejoin = func() error {
			joined++
			return nil
		}
		var first []byte
		must(t, q.Gather(at, 0, All(3), 2, func(b *rdma.Batch, r int) error {
			if r == 1 {
				if asked++; asked > before && joined < 12 {
					return rdma.ErrStale
				}
			}
			return readWord(at)(b, r)
		}, func(r int, b *rdma.Batch, ch Chain) Verdict {
			if r == 0 {
				first = b.Op(ch.First).Buf
				first[0] = 77
				return Done
			}
			b.Op(ch.First).Buf[0] = 1
			if asked < before {
				return Again
			}
			return Done
		}))
		if q.Done() != 0b011 || joined != 12 && asked > before {
			t.Errorf("fenced off behind %d questions: %03b are done, and %d times joined", before, q.Done(), joined)
		}
		if before < len(q.flights)-1 && first[0] != 77 {
			t.Errorf("fenced off behind %d questions: what was read is %d", before, first[0])
		}
	}
}
