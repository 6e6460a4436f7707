package simulate

import (
	"reflect"
	"testing"
	"time"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// TestSamples compares samples of a run, in which a node crashes, with its result, and the result
// with that of the same run without samples.
func TestSamples(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := config(t, "ycsb-a", 4, 500)
	c.Ops, c.Duration, c.Interval = 0, 30*time.Millisecond, time.Millisecond
	c.Lease = 2 * time.Millisecond
	c.Pool.Nodes, c.Pool.Spares, c.Faults = 4, 1, "crash node=1 at=8ms"
	plain, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var all []*telemetry.Sample
	c.Sample = func(s *telemetry.Sample) { all = append(all, s) }
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(r, plain) {
		t.Error("samples change the run")
	}
	if len(all) < 20 || len(all) > 31 {
		t.Fatalf("%d samples of 30 intervals", len(all))
	}
	var broken, healed bool
	for i, s := range all {
		if i > 0 && !s.At.After(all[i-1].At) {
			t.Errorf("sample %d is of %v, behind one of %v", i, s.At, all[i-1].At)
		}
		for _, e := range s.Events {
			broken = broken || e.What == "broken"
			healed = healed || e.What == "restored"
		}
	}
	last := all[len(all)-1]
	if !broken || !healed || !last.Whole || last.Nodes[1].Role != "gone" || last.Nodes[3].Replaces != 2 {
		t.Errorf("broken %t, healed %t; in the end %+v", broken, healed, last)
	}
	sum := uint64(0)
	for _, o := range last.Processes[0].Ops {
		sum += o.OK + o.Failed
	}
	if sum == 0 || sum > r.Operations || r.Operations-sum > r.Operations/10 {
		t.Errorf("%d operations in the last sample, %d in the end", sum, r.Operations)
	}
}
