package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// TestVerbs: the output reports those costs of an operation that were counted, and no others.
func TestVerbs(t *testing.T) {
	r := &runner.Result{Operations: 4}
	want := ""
	check := func() {
		t.Helper()
		if got := verbs(r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	check()
	r.Counters = &runner.Counters{Trips: 2, Reads: 4, Writes: 2, Atomics: 1, Doorbells: 3, Calls: 1}
	want = "Of the fabric an operation took: 0.50 trips, 0.75 doorbells, 1.75 verbs, 0.25 calls of nodes"
	check()
	r.Device = (&device{Name: "rxe0", Port: 1, Calls: 30, Waits: 3}).since(&device{Name: "rxe0", Port: 1, Calls: 20,
		Waits: 2})
	want += "; of rxe0 2.50 calls into libibverbs and 0.25 sleeps"
	check()
	r.Device = (&device{Name: "rxe0", Port: 1, Calls: 30, Waits: 3, Sent: 9, Received: 13}).since(&device{Calls: 20,
		Waits: 2, Sent: 10, Received: 2})
	want += "; its port 1, for all processes, sent 2.25 packets and received 2.75"
	check()
	if (*device)(nil).since(nil) != nil {
		t.Error("no device did something")
	}
}

// TestExplain: what failed is said in a line, with the flag that mends it.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{client.ErrTooLarge, "make the pool with a higher 'farkv up --pair-bytes', or lower fieldlength or fieldcount"},
		{client.ErrFull, "a higher farkv.memory or recordcount"},
		{client.ErrNotFound, "load the same recordcount and insertorder first"},
		{rdma.ErrNodeDown, "'farkv status mine' shows the nodes"},
	} {
		got := explain(fmt.Errorf("insert: %w", c.err), "mine")
		if !strings.HasPrefix(got, "insert: ") || !strings.Contains(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestProgress: lines count what ended, also where no latency is known of it yet, and say once why
// operations fail.
func TestProgress(t *testing.T) {
	var out strings.Builder
	o := &output{info: &out, pool: "mine"}
	var calls, none [workloads.Ops]workloads.Measure
	calls[workloads.OpRead].Err = fmt.Errorf("get: %w", rdma.ErrNodeDown)
	ended := workloads.Counts{OK: [workloads.Ops]uint64{8, 2}}
	failing := workloads.Counts{Failed: [workloads.Ops]uint64{3}}
	o.progress(runner.Progress{Elapsed: time.Second, Calls: &none})
	p := runner.Progress{Interval: 2 * time.Second}
	for _, of := range []struct {
		workloads.Counts
		calls *[workloads.Ops]workloads.Measure
	}{{ended, &none}, {failing, &none}, {failing, &calls}, {failing, &calls}, {ended, &none}, {failing, &calls}} {
		all, _ := of.Ended()
		p.Elapsed += p.Interval
		p.Operations += all
		p.Ended, p.Calls = of.Counts, of.calls
		o.progress(p)
	}
	const why = "The first to fail: READ: get: memory node is down (hint: 'farkv status mine' shows the nodes)\n"
	want := "[1s] warming up\n" +
		"[2s] 10 operations, 5.0 ops/s\n" +
		"[4s] 13 operations, 1.5 ops/s, 3 FAILED\n" +
		"[6s] 16 operations, 1.5 ops/s, 3 FAILED\n" + why +
		"[8s] 19 operations, 1.5 ops/s, 3 FAILED\n" +
		"[10s] 29 operations, 5.0 ops/s\n" +
		"[12s] 32 operations, 1.5 ops/s, 3 FAILED\n" + why
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}
