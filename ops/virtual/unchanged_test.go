package virtual

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
	"github.com/farkv/farkv/workloads/simulate"
)

// changing is a mix with calls of all kinds that workloads have, and new records.
var changing = []string{"readproportion=0.3", "updateproportion=0.3", "insertproportion=0.3",
	"readmodifywriteproportion=0.1"}

// unchangedRuns are a store's: a run a seed.
func unchangedRuns(store string) []Simulation {
	quiet := Simulation{
		Config: simulate.Config{
			Store: store, Profile: "fusee-testbed", Pool: stores.Params{Nodes: 4}, Clients: 6, Ops: 1500,
			Duration: 20 * time.Millisecond, WarmUp: 600, Memory: true, Lease: time.Millisecond,
			Interval: time.Millisecond,
		},
		Workload: simulate.Workload{Name: "ycsb-a", Records: 200, PairBytes: 128},
	}
	if strings.HasPrefix(store, "fusee") || store == "rcuckoo" {
		quiet.Pool.Spares, quiet.Pool.IndexReplicas, quiet.Pool.DataReplicas = 1, 2, 2
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
	crash := func(s *Simulation, fault string) { s.OtherFaults = append(s.OtherFaults, fault) }
	crash(&list[2], `crash client="client 3" verb=101`)
	crash(&list[3], `crash client="client 2" verb=302`)
	crash(&list[4], "crash node=1 at=700µs")
	crash(&list[5], "crash node=0 at=300µs")
	switch store { // what else there is to a store
	case "fusee", "fusee-cr", "fusee-nc":
		list[1].Set("node-centric", true)
		for _, i := range []int{2, 3, 4} {
			list[i].Pool.IndexReplicas, list[i].Pool.DataReplicas = 3, 3
		}
	case "rowan", "rpc-kv", "rwrite-kv", "batch-kv", "share-kv": // servers look again and again, which takes long
		for i := range list {
			list[i].Ops, list[i].Duration = list[i].Ops/5, 6*time.Millisecond
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

// TestUnchanged compares small runs of every store, quiet ones and with a client or a node that
// crashes, and one of each call by a client alone, with what they were: the number of verbs and
// calls, and a hash over each one's time, kind, node, offset and length in their order. So a change
// that is to move code, and nothing else, shows that it does. A change of a protocol, or of the
// model, remakes the file; a store that is not in the file yet is not compared.
func TestUnchanged(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	const file, remake = "testdata/unchanged.json", "FARKV_REMAKE"
	names := stores.Names()
	is := make([]map[string]string, len(names)) // each written by one subtest
	t.Run("stores", func(t *testing.T) {
		for i, store := range names {
			t.Run(store, func(t *testing.T) {
				t.Parallel()
				is[i] = unchangedStore(t, store)
			})
		}
	})
	was := map[string]map[string]string{}
	if os.Getenv(remake) != "" {
		for i, store := range names {
			was[store] = is[i]
		}
		text, err := json.MarshalIndent(was, "", "\t")
		if err == nil {
			err = os.WriteFile(file, append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, store := range names {
		if was[store] == nil {
			t.Logf("%s is not in %s; %s=1 writes it", store, file, remake)
			continue
		}
		for _, run := range slices.Sorted(maps.Keys(is[i])) {
			if was, is := was[store][run], is[i][run]; was != is {
				t.Errorf("%s, %s: was %s, is %s; if runs are to change, %s=1 writes %s anew", store, run, was, is,
					remake, file)
			}
		}
	}
}

// unchangedStore returns what the verbs of a store's runs come to, by the runs' names.
func unchangedStore(t *testing.T, store string) map[string]string {
	is := map[string]string{}
	for _, s := range unchangedRuns(store) {
		is[fmt.Sprintf("seed %d", s.Seed)] = unchangedRun(t, s, simulate.Run)
		if s.Seed == 1 {
			s.Records, s.Interval = 1000, 0
			is["alone"] = unchangedRun(t, s, func(ctx context.Context, c simulate.Config) (*simulate.Result, error) {
				c.Pool.Records += 100
				return simulate.Micro(ctx, c, 100)
			})
		}
	}
	return is
}

func unchangedRun(t *testing.T, s Simulation, run func(context.Context, simulate.Config) (*simulate.Result,
	error)) string {
	t.Helper()
	c, err := s.Complete()
	if err != nil {
		t.Fatalf("seed %d: %v", s.Seed, err)
	}
	h, verbs := fnv.New64a(), 0
	c.Trace = func(e sim.Event) {
		switch e.Kind {
		case sim.Post:
			fmt.Fprintln(h, int64(e.At), int(e.Verb), e.Addr.Node(), e.Addr.Offset(), e.Len)
		case sim.Call:
			fmt.Fprintln(h, int64(e.At), "call", e.Addr.Node(), e.Value)
		default:
			return
		}
		verbs++
	}
	if _, err := run(t.Context(), c); err != nil {
		t.Fatalf("seed %d: %v", s.Seed, err)
	}
	return fmt.Sprintf("%d verbs, %016x", verbs, h.Sum64())
}
