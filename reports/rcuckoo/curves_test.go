package rcuckoo

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// TestFigure4b: with f = 2.3 and rows of 8 entries more than 95 % of a table are used when the
// first insert fails, on the average of ten tables of 4,000 rows (97 %). The first failure is that
// of the worst neighbourhood of all, so it comes the earlier the larger the table is: at 95 % of
// 10,000 rows and at 92 % of 100,000. The paper does not say how large its tables were.
func TestFigure4b(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("only computes; run without -race")
	}
	average := func(factor float64, entries int, tables uint64) float64 {
		sum := 0.0
		for seed := range tables {
			got, err := maxFill(factor, entries, 4000, seed)
			if err != nil {
				t.Fatal(err)
			}
			sum += got
		}
		return sum / float64(tables)
	}
	got := average(2.3, 8, 10)
	if got <= 0.95 || got > 0.985 {
		t.Errorf("tables are %.1f %% full", 100*got)
	}
	if low, far := average(1.9, 8, 3), average(2.5, 8, 3); low >= got-0.05 || far <= got {
		t.Errorf("%.3f of the entries are used with f = 1.9, %.3f with 2.3, %.3f with 2.5", low, got, far)
	}
	if few := average(2.3, 4, 3); few >= got-0.05 {
		t.Errorf("%.3f of the entries are used with rows of 4, %.3f with 8", few, got)
	}
}

// TestFigure4c: while a table is filled to 95 %, 95 % of the inserts span 32 rows or fewer, and
// nearly 99 % 256 or fewer; with independent rows those that move something nearly always span a
// large part of it. In the paper about half of them move nothing; here 94 %, since a free slot in a
// key's second row is as good as one in its first: both are locked and read.
func TestFigure4c(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("only computes; run without -race")
	}
	const rows = 10_000
	counted := func(factor float64) ([]int, int) {
		got, err := spans(factor, 8, rows, 0.95, 1)
		if err != nil {
			t.Fatal(err)
		}
		return got.counts, got.failed
	}
	n, failed := counted(2.3)
	if within(n, 32) < 0.95 || within(n, 256) < 0.989 || within(n, 0) < 0.5 || within(n, 0) > 0.96 ||
		failed > rows/1000 {
		t.Errorf("%.3f of the inserts move nothing, %.3f span 32 rows, %.3f 256; %d failed", within(n, 0),
			within(n, 32), within(n, 256), failed)
	}
	n, failed = counted(independent)
	if far := (1 - within(n, rows/50)) / (1 - within(n, 0)); far < 0.95 || failed > 0 {
		t.Errorf("of independent keys' inserts that move something %.3f span a fiftieth of the table or more; %d "+
			"failed", far, failed)
	}
}

func TestSpan(t *testing.T) {
	for _, c := range []struct {
		want int
		rows []int
	}{{0, []int{7}}, {5, []int{7, 2}}, {5, []int{2, 5, 7}}, {3, []int{1, 98}}, {4, []int{1, 2, 98}},
		{50, []int{0, 50}}} {
		if got := span(c.rows, 100); got != c.want {
			t.Errorf("%v span %d rows, want %d", c.rows, got, c.want)
		}
	}
}

func TestCurvesOfBadTables(t *testing.T) {
	_, err := maxFill(0.5, 8, 10, 1)
	_, err2 := distances(0.5, 10, 10, 1)
	_, err3 := spans(2.3, 100, 10, 0.5, 1)
	for _, err := range []error{err, err2, err3} {
		if err == nil {
			t.Error("a table that cannot be")
		}
	}
	if got, err := spans(1, 2, 8, 1.5, 1); !errors.Is(err, client.ErrFull) || got.failed != 16 {
		t.Errorf("%d inserts failed: %v", got.failed, err)
	}
}
