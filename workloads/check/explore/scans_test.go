package explore

import (
	"errors"
	"strings"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// scanner is a toy with scans, key by key. With a flaw a scan ends where a key is absent.
type scanner struct {
	toy
	ends bool
}

func (s *scanner) Scan(start []byte, n int, yield func(key, value []byte) bool) error {
	for i := range toyKeys {
		key := []byte(keyName(i))
		if n == 0 || string(key) < string(start) {
			continue
		}
		value, err := s.Get(key)
		switch {
		case errors.Is(err, client.ErrNotFound) && s.ends:
			return nil
		case errors.Is(err, client.ErrNotFound):
			continue
		case err != nil:
			return err
		}
		if n--; !yield(key, value) {
			return nil
		}
	}
	return nil
}

func scanningToy(ends bool) *Subject {
	s := toySubject("")
	s.Scans = true
	s.Open = func(ep rdma.Endpoint, _ bool) (client.Store, error) { return &scanner{toy{ep: ep}, ends}, nil }
	return s
}

// Scans are drawn in the place of other operations, of stores that have them; the rest of a plan is
// as it is without.
func TestScansAreDrawn(t *testing.T) {
	with, without := scanningToy(false), toySubject("")
	scans := 0
	for seed := range uint64(200) {
		p, q := with.Draw(seed, Limits{}), without.Draw(seed, Limits{})
		if read, err := Parse(p.String()); err != nil || read.String() != p.String() {
			t.Fatalf("%v: %s is read as %s", err, p, read)
		}
		for w := range p.Work {
			for i, op := range p.Work[w] {
				if op.sized() && !op.writes() {
					scans++
					p.Work[w][i] = q.Work[w][i]
				}
			}
		}
		if p.String() != q.String() {
			t.Fatalf("%s\n%s", p, q)
		}
	}
	if scans < 1000 {
		t.Errorf("%d scans", scans)
	}
	for _, line := range []string{"work=s0", "work=s0:-1", "work=s99:1"} {
		if _, err := Parse(line); !errors.Is(err, ErrPlan) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A scan that misses what is there is found.
func TestBrokenScan(t *testing.T) {
	search := Search{First: 1, Runs: 200, Limits: Limits{Faults: -1}}
	if r := scanningToy(false).Fuzz(t.Context(), search); r.Failure != nil {
		t.Fatalf("seed %d: %v: %s", r.Seed, r.Failure, r.Plan)
	}
	s := scanningToy(true)
	r := s.Fuzz(t.Context(), search)
	if r.Failure == nil || r.Failure.Guilt != Disorder {
		t.Fatalf("got %v, want an answer that is out of order", r.Failure)
	}
	p, f := s.Shrink(r.Plan, r.Failure)
	if _, work, _ := strings.Cut(p.String(), "work="); !strings.Contains(work, "s") || p.ops() > 4 ||
		f.Guilt != Disorder {
		t.Errorf("%v shrank to %v: %s", r.Failure, f, p)
	}
	t.Logf("seed %d: %s", r.Seed, p)
}
