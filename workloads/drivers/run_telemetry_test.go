package drivers

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads/runner"
)

// TestRunTelemetry: while a run goes on, the telemetry of its pool has its operations, and no
// others.
func TestRunTelemetry(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	p := props("recordcount=1000", "operationcount=6000", "threadcount=3", "target=2000", "maxexecutiontime=3",
		"farkv.pool=shm:tells", "fieldcount=1",
		"readproportion=0.5", "updateproportion=0.3", "insertproportion=0.2", "command=load")
	run := func(load bool) *runner.Result {
		db, err := Create("fusee", p)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		c, err := runner.Configure(p)
		if err != nil {
			t.Fatal(err)
		}
		c.Name, c.Database, c.Load = "fusee", db, load
		if load {
			c.Target = 0
		}
		res, err := runner.Run(t.Context(), c)
		if err != nil || res.Failed > 0 {
			t.Fatal(res, err)
		}
		return res
	}
	run(true)
	if _, _, err := p.Set("command", "run"); err != nil {
		t.Fatal(err)
	}
	pool, err := stores.Open("shm:tells")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ep, err := rdma.Peek(pool.Fabric, "look")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	region, err := telemetry.Find(ep, pool.Fabric.Nodes())
	if err != nil {
		t.Fatal(err)
	}
	reader := telemetry.NewReader(region)
	done := make(chan *runner.Result)
	go func() { done <- run(false) }()
	var last telemetry.Process
	var res *runner.Result
	for res == nil {
		select {
		case res = <-done:
		case <-time.After(20 * time.Millisecond):
			told, _, err := reader.Processes(ep, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if len(told) == 1 && told[0].Workers == 3 {
				last = told[0]
			}
		}
	}
	checkTold(t, &last, res)
	if told, _, _ := reader.Processes(ep, time.Now()); len(told) > 0 {
		t.Errorf("told behind its end: %+v", told)
	}
}

// checkTold compares what a run told last with what it did.
func checkTold(t *testing.T, last *telemetry.Process, res *runner.Result) {
	t.Helper()
	sum := uint64(0)
	for k, o := range last.Ops {
		if sum += o.OK; o.OK > 0 && (o.Latency == nil || o.Latency.Count() != o.OK || o.Trips < o.OK ||
			o.Failed+o.Unknown > 0) {
			t.Errorf("%s: %+v", telemetry.Kind(k), o)
		}
	}
	if sum < 1000 || sum > res.Operations || last.Ops[telemetry.Get].OK == 0 || last.Ops[telemetry.Insert].OK == 0 {
		t.Errorf("told of %d operations, %d were done: %+v", sum, res.Operations, last.Ops)
	}
	reads := uint64(0)
	for _, n := range last.Nodes {
		reads += n.Reads
	}
	if last.Name != "go-ycsb fusee" || reads < sum || reads > res.Counters.Reads+1000 || last.Oldest > time.Second {
		t.Errorf("%d READs of %d: %+v", reads, res.Counters.Reads, last)
	}
	if len(last.Own) == 0 || last.Own[0].Count == 0 || last.Own[0].Count > res.Operations {
		t.Errorf("of its own: %+v", last.Own)
	}
}
