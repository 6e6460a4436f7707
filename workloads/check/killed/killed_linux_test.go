package killed

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
)

func testLedger(t *testing.T, workers int) *ledger {
	t.Helper()
	l, err := mapLedger(filepath.Join(t.TempDir(), "ledger"), workers, 1)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestStolen: what the host takes of a processor is a delay, of each by itself, and from the second
// look on.
func TestStolen(t *testing.T) {
	g := newGauges(testLedger(t, 1), 0)
	stole, began := map[string]time.Duration{}, realtime.Now()
	for i, c := range []struct {
		first, second int
		want          time.Duration
	}{
		{500, 70, 0}, {500, 70, 0}, {502, 73, 30 * time.Millisecond}, {522, 73, 200 * time.Millisecond},
	} {
		g.stolen(fmt.Sprintf("cpu  1 2 3 4 5 6 7 %d 9 10\ncpu0 1 2 3 4 5 6 7 %d 9 10\ncpu1 1 2 3 4 5 6 7 %d 9 10\n"+
			"intr 99 1 2 3 4 5 6 7 8 9\n", c.first+c.second, c.first, c.second), stole, realtime.Now())
		if d := g.delay(began, realtime.Now()); d != c.want {
			t.Errorf("look %d: a delay of %v, want %v", i, d, c.want)
		}
	}
}

// TestBuried: a process died when it killed itself, or was killed, whenever that is found.
func TestBuried(t *testing.T) {
	r := run{ledger: testLedger(t, 4)}
	p := &process{place: place{First: 1, Workers: 2}}
	r.ledger.worker(0)[diedAt].Store(5) // of others
	r.ledger.worker(3)[diedAt].Store(5)
	if r.buried(p) {
		t.Error("neither killed it, and it counts as killed")
	}
	p.shot = 100
	killed := r.buried(p)
	r.ledger.worker(2)[diedAt].Store(40)
	own := r.buried(p) // before it was killed
	p.shot = 0
	alone := r.buried(p)
	if want := []time.Duration{0, 100, 40, 40}; !killed || !own || !alone || !slices.Equal(r.killed, want) {
		t.Errorf("killed at %v, want %v; %v, %v, %v", r.killed, want, killed, own, alone)
	}
}
