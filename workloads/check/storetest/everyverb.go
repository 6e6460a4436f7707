package storetest

import (
	"testing"

	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// CrashAtEveryVerb plays runs without faults, and then each of them with a crash of "worker 0"
// behind each verb that it sent, and of each node behind each verb that landed there. play returns
// how many were sent, by worker, and have landed, by node.
func CrashAtEveryVerb(t *testing.T, play func(seed uint64, faults ...sim.Fault) (sent, landed []uint64, err error)) {
	t.Helper()
	runs, few := 0, seeds.Few(12)
	for seed := uint64(1); seed <= few; seed++ {
		try := func(faults ...sim.Fault) (sent, landed []uint64) {
			runs++
			sent, landed, err := play(seed, faults...)
			if err != nil {
				t.Fatalf("seed %d, %s: %v", seed, sim.Faults(faults), err)
			}
			return sent, landed
		}
		sent, landed := try()
		for k := range sent[0] {
			try(sim.Fault{Kind: sim.CrashFault, Client: "worker 0", Verb: k + 1})
		}
		for n, verbs := range landed {
			for k := range verbs {
				try(sim.Fault{Kind: sim.CrashFault, Node: n, Verb: k + 1})
			}
		}
	}
	t.Logf("%d runs", runs)
	if runs < int(few)*50 {
		t.Error("there were hardly any crashes")
	}
}
