package ops

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/check/teeth"
	"github.com/farkv/farkv/workloads/check/unchanged"
	"github.com/farkv/farkv/workloads/simulate"
)

// changing is a mix with calls of all kinds that workloads have, and new records.
var changing = []string{"readproportion=0.3", "updateproportion=0.3", "insertproportion=0.3", "readmodifywriteproportion=0.1"}

// unchangedRuns are a store's: a run a seed.
func unchangedRuns(store string) []Simulation {
	quiet := Simulation{
		Store: store, Profile: "fusee-testbed", Workload: simulate.Workload{Name: "ycsb-a", Records: 200, PairBytes: 128},
		Nodes: 4, Clients: 6, Ops: 1500, Duration: 20 * time.Millisecond, WarmUp: 600, Memory: true, Lease: time.Millisecond,
		Interval: time.Millisecond,
	}
	if strings.HasPrefix(store, "fusee") || store == "rcuckoo" {
		quiet.Spares, quiet.IndexReplicas, quiet.DataReplicas = 1, 2, 2
	}
	list := make([]Simulation, 6)
	for i := range list {
		s := &list[i]
		*s = quiet
		s.Seed = uint64(i + 1)
		if i%2 == 1 {
			s.Properties, s.Records, s.PairBytes, s.InFlight, s.Ops = changing, 1000, 300, 2, 5000
		}
	}
	crash := func(s *Simulation, fault string) { s.Faults = append(s.Faults, fault) }
	crash(&list[2], `crash client="client 3" verb=101`)
	crash(&list[3], `crash client="client 2" verb=302`)
	crash(&list[4], "crash node=1 at=700µs")
	crash(&list[5], "crash node=0 at=300µs")
	switch store { // what else there is to a store
	case "fusee", "fusee-cr", "fusee-nc":
		list[1].Set("node-centric", true)
		for _, i := range []int{2, 3, 4} {
			list[i].IndexReplicas, list[i].DataReplicas = 3, 3
		}
	case "raw": // what its dead node had fails, for long
		list[5].Interval = 0
	case "rcuckoo":
		for i := range list {
			list[i].Set("failure-timer", 2*time.Millisecond)
			if i%2 == 1 {
				list[i].Set("levels", 2)
			}
		}
	}
	return list
}

// TestUnchangedRuns compares small runs of every store, quiet ones and with a client or a node that crashes, and one of
// each call by a client alone, with what they were: every number of sim run's JSON, and the verbs in their order.
func TestUnchangedRuns(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for _, store := range stores.Names() {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			runs := unchanged.Runs{}
			for _, s := range unchangedRuns(store) {
				name := fmt.Sprintf("seed %d", s.Seed)
				runs[name] = unchangedRun(t, s, name, simulate.Run)
				if s.Seed == 1 {
					s.Records, s.Interval = 1000, 0
					runs["alone"] = unchangedRun(t, s, "alone", func(ctx context.Context, c simulate.Config) (*simulate.Result, error) {
						c.Pool.Records += 100
						return simulate.Micro(ctx, c, 100)
					})
				}
			}
			unchanged.Compare(t, store, runs)
		})
	}
}

func unchangedRun(t *testing.T, s Simulation, name string,
	run func(context.Context, simulate.Config) (*simulate.Result, error)) unchanged.Numbers {
	t.Helper()
	c, err := s.Config()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	n := unchanged.Numbers{}
	var verbs func()
	c.Trace, verbs = n.Verbs()
	r, err := run(t.Context(), c)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	verbs()
	if err := n.Add("", &Simulated{Workload: s.Name, Title: s.Title(), Result: r}); err != nil {
		t.Fatal(err)
	}
	return n
}
