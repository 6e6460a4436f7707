package measure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
)

func small() Bench {
	return Bench{
		Stores: []string{"fusee", "fusee-nc"}, Workload: "b", Records: 5000, Ops: 2000, Threads: 2, Nodes: 3,
		Replicas: 2, Seed: 3,
	}
}

func TestBench(t *testing.T) {
	b := small()
	c, err := b.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Rows) != 2 || c.Seed != 3 || !strings.HasPrefix(c.Title, "YCSB B") {
		t.Fatalf("%+v", c)
	}
	for _, r := range c.Rows {
		if r.Load <= 0 || r.Run <= 0 || r.P50 <= 0 || r.P99 < r.P50 || r.Get.Floor <= 0 || r.Update.Store <= 0 {
			t.Errorf("%+v", r)
		}
		// Every pair is there twice, and clients have blocks that are not full.
		if r.BytesPerByte < 2 || r.BytesPerByte > 4 || r.Replicas != 2 {
			t.Errorf("%s: %.1f bytes of the pool for each of the user's", r.Name, r.BytesPerByte)
		}
	}
	// A cache saves trips: one of two for most reads.
	cached, uncached := c.Rows[0].Trips, c.Rows[1].Trips
	if cached < 1 || cached >= uncached || uncached < 2 {
		t.Errorf("%.2f trips a call with a cache, %.2f without", cached, uncached)
	}
}

// All stands for each store once, wherever it stands, and hides no unknown name.
func TestAllStores(t *testing.T) {
	b := small()
	b.Replicas = 0
	for _, names := range [][]string{{"all"}, {"all", "fusee"}, {"swarm", "all"}} {
		b.Stores = names
		if kinds, err := b.kinds(); err != nil || len(kinds) != len(stores.Names()) {
			t.Errorf("%q: %d stores, %v", names, len(kinds), err)
		}
	}
	b.Stores = []string{"all", "nosuch"}
	if _, err := b.kinds(); !runner.Misused(err) {
		t.Errorf("an unknown store: %v", err)
	}
}

// What a store does not take is found before the first of them is measured.
func TestCheckedFirst(t *testing.T) {
	for _, c := range []struct {
		change func(b *Bench)
		want   string
	}{
		{func(b *Bench) { b.Stores = []string{"fusee", "swarm"} }, "a swarm pool: 2 replicas: want 3, 5 or 7"},
		{func(b *Bench) { b.Stores = []string{"fusee", "raw"} }, "leave --replicas out"},
		{func(b *Bench) { b.Stores = []string{"swarm", "fusee"}; b.Replicas = 0; b.Workload = "e" },
			"swarm has no scans"},
	} {
		b := small()
		c.change(&b)
		b.Say = func(format string, args ...any) { t.Errorf("it began: "+format, args...) }
		if _, err := b.Run(t.Context()); !runner.Misused(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// Each store has its own replicas; no line is wider than a terminal.
func TestOwnReplicas(t *testing.T) {
	b := small()
	b.Stores, b.Replicas, b.Workload = []string{"swarm", "rcuckoo"}, 0, "d"
	c, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Rows) != 2 || c.Rows[0].Replicas != 3 || c.Rows[1].Replicas != 1 || c.Rows[0].BytesPerByte < 3 ||
		c.Rows[1].BytesPerByte < 1 {
		t.Errorf("%+v", c.Rows)
	}
	var out strings.Builder
	c.Print(&out)
	for _, line := range strings.Split(out.String(), "\n") {
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("%d wide: %s", utf8.RuneCountInString(line), line)
		}
	}
}

// An interrupted bench tells what it measured before.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b := small()
	b.Say = func(format string, args ...any) {
		if s := fmt.Sprintf(format, args...); strings.HasPrefix(s, "fusee-nc: running") {
			cancel()
		}
	}
	c, err := b.Run(ctx)
	if !errors.Is(err, context.Canceled) || runner.Misused(err) || len(c.Rows) != 1 || c.Rows[0].Name != "fusee" {
		t.Errorf("%v, %+v", err, c)
	}
}

// A row that a time limit cut off says so, and how far it came.
func TestCut(t *testing.T) {
	c := Comparison{Replicas: 2, Rows: []Row{
		{Name: "whole"}, {Name: "redis", Cut: []Cut{{What: "running", Done: 1234, Of: 5000, Seconds: 5}}},
	}}
	var out strings.Builder
	c.Print(&out)
	for _, line := range []string{
		"\nwhole ", "\nredis* ", "\n* redis: cut off while running after 5 s: 1,234 of 5,000 done\n",
		" of private memory, 2 replicas, seed 0\n",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in %s", line, out.String())
		}
	}
}

// Behind a load that was cut off there is no run: it would miss records.
func TestCutLoad(t *testing.T) {
	b := small()
	b.Records, b.Say = 300_000, func(string, ...any) {}
	c, _, err := b.configure()
	if err != nil {
		t.Fatal(err)
	}
	kind, err := stores.Lookup("fusee")
	if err != nil {
		t.Fatal(err)
	}
	p, remove, err := b.pool(kind, c.Spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(p.Close(), remove()); err != nil {
			t.Error(err)
		}
	}()
	c.Database, c.MaxTime = drivers.Embed(kind, p.Fabric, stores.Options{}, c.Spec), 10*time.Millisecond
	var row Row
	if err := b.loadAndRun(context.Background(), c, &row); err != nil {
		t.Fatal(err)
	}
	if len(row.Cut) != 1 || row.Cut[0].What != "loading" || row.Cut[0].Done >= 300_000 || row.Run != 0 ||
		row.cells()[3] != "-" {
		t.Errorf("%+v", row)
	}
}

func TestCrowded(t *testing.T) {
	if err := crowded(fmt.Errorf("put: %w", rdma.ErrFull)); !errors.Is(err, rdma.ErrFull) ||
		!strings.Contains(err.Error(), "lower --threads") {
		t.Error(err)
	}
	if err := crowded(fmt.Errorf("%w: %w", rdma.ErrFull, syscall.ENOSPC)); strings.Contains(err.Error(), "hint") {
		t.Error(err)
	}
}
