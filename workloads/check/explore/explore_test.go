package explore

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// coroutines leaves a test out under -race.
func coroutines(t *testing.T) {
	t.Helper()
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
}

func TestToy(t *testing.T) {
	coroutines(t)
	Seeds(t, toySubject(""), 2000)
}

func TestToyCrashes(t *testing.T) {
	coroutines(t)
	Enumerate(t, toySubject(""))
}

// A crash behind each verb is tried, which finds what crashes leave and no recovery mends.
func TestEnumerationHasTeeth(t *testing.T) {
	coroutines(t)
	for flaw, want := range map[string]Guilt{"no recovery": Failed, "waits": Waiting, "leak": Damage,
		"unrecovered": Unrecovered} {
		e := &enumeration{subject: toySubject(flaw), replicas: 1, first: 1, jobs: len(scenes)}
		if p, f := e.run(); f == nil || f.Guilt != want {
			t.Errorf("%s: %v, %v", flaw, f, p)
		}
	}
}

// Where majorities decide, no operation waits for dead clients or nodes, and plans kill a minority
// of the nodes.
func TestMajority(t *testing.T) {
	coroutines(t)
	s := toySubject("no recovery")
	s.Recoverer = nil
	if r := s.Fuzz(t.Context(), Search{First: 1, Runs: 500}); r.Failure != nil || r.Deaths > 0 {
		t.Fatalf("without recovery: %v, %d nodes died", r.Failure, r.Deaths)
	}
	s.Majority = true
	if r := s.Fuzz(t.Context(), Search{First: 1, Runs: 500}); r.Failure == nil || r.Failure.Guilt != Failed {
		t.Errorf("they wait: %v", r.Failure)
	}
	for replicas, want := range []int{0, 0, 0, 1, 1, 2} {
		if n := s.expendable(replicas); n != want && replicas > 0 {
			t.Errorf("of %d replicas %d may be lost", replicas, n)
		}
	}
}

// Each way of being guilty is found, made smaller, and found again from the line.
func TestTeeth(t *testing.T) {
	coroutines(t)
	for _, tt := range []struct {
		flaw  string
		guilt Guilt
		says  string
	}{
		{"bad plan", BadPlan, "full"},
		{"mixed", BrokenRule, "changed by atomics"},
		{"panic", Panic, "a key that is not there"},
		{"endless", Endless, "stuck"},
		{"failed", Failed, "view has changed"},
		{"late", Late, "operation timeout is 20ms"},
		{"lost", Disorder, "not linearizable"},
		{"leak", Damage, "is locked"},
		{"no recovery", Failed, "timed out"},
		{"waits", Waiting, "is locked"},
		{"unrecovered", Unrecovered, "not today"},
	} {
		t.Run(tt.flaw, func(t *testing.T) {
			s := toySubject(tt.flaw)
			r := s.Fuzz(t.Context(), Search{First: 1, Runs: 2000})
			if r.Failure == nil {
				t.Fatalf("%d runs find nothing", r.Runs)
			}
			p, f := s.Shrink(r.Plan, r.Failure)
			if f.Guilt != r.Failure.Guilt || p.ops() > r.Plan.ops() || len(p.Faults) > len(r.Plan.Faults) {
				t.Errorf("%v shrank to %v\n%s\n%s", r.Failure, f, r.Plan, p)
			}
			if f.Guilt != tt.guilt || !strings.Contains(f.Error(), tt.says) {
				t.Errorf("got %v, want %s and %q", f, tt.guilt, tt.says)
			}
			read, err := Parse(p.String())
			if err != nil {
				t.Fatal(err)
			}
			var replay bytes.Buffer
			again, err := s.Replay(read, &replay)
			if err != nil || again == nil || head(again) != head(f) {
				t.Errorf("the line says %v, %v, and not %v", again, err, f)
			}
			t.Logf("seed %d: %s\n%s", r.Seed, f, p)
		})
	}
}

// head is the first line of what a failure says: below a panic's lie addresses.
func head(f *Failure) string {
	line, _, _ := strings.Cut(f.Error(), "\n")
	return line
}

// The lowest seed that fails is reported, in the same words, however many look for it.
func TestFuzzIsDeterministic(t *testing.T) {
	s := toySubject("lost")
	o := Search{First: 5, Runs: 500, Limits: Limits{Faults: -1}}
	first := s.Fuzz(t.Context(), o)
	for range 3 {
		again := s.Fuzz(t.Context(), o)
		if again.Seed != first.Seed || again.Plan.String() != first.Plan.String() ||
			again.Failure.Error() != first.Failure.Error() {
			t.Errorf("first seed %d: %v\nthen seed %d: %v", first.Seed, first.Failure, again.Seed, again.Failure)
		}
	}
	for seed := o.First; seed < first.Seed; seed++ {
		if f := s.Run(s.Draw(seed, o.Limits)); f != nil {
			t.Errorf("seed %d fails, too: %v", seed, f)
		}
	}
}

func TestFuzzEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := Search{First: 1, Runs: 1 << 40, Progress: func(s Stats) {
		if s.Runs > 500 {
			cancel()
		}
	}}
	if r := toySubject("").Fuzz(ctx, o); r.Failure != nil || r.Runs < 500 || r.Runs > 5000 {
		t.Errorf("%+v", r)
	}
}

func TestLimits(t *testing.T) {
	s := toySubject("")
	s.Replicas = [][2]int{{1, 1}, {3, 3}}
	l := Limits{Workers: 2, Keys: 1, Ops: 3, Replicas: 3, Value: 10, Faults: -1}
	for seed := range uint64(200) {
		p := s.Draw(seed, l)
		if len(p.Work) > 2 || p.keys() > 1 || p.ops() > 6 || p.Index != 3 || p.Data != 3 || len(p.Faults) > 0 {
			t.Fatal(p)
		}
		kinds, err := ParseKinds([]string{"crash", "late"})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range s.Draw(seed, Limits{Kinds: kinds}).Faults {
			if f.Kind != sim.CrashFault && f.Kind != sim.LateFault {
				t.Fatal(f)
			}
		}
		if q := s.Draw(seed, l); !reflect.DeepEqual(p, q) {
			t.Fatalf("%s\n%s", p, q)
		}
	}
}

// Outages are drawn beside everything else, where pools outlive them, and no plan has others.
func TestOutages(t *testing.T) {
	s := toySubject("")
	s.Replicas = [][2]int{{1, 1}, {3, 3}}
	durable := *s
	durable.Durable = true
	ones, all, deaths := 0, 0, 0
	for seed := range uint64(500) {
		p, q := s.Draw(seed, Limits{}), durable.Draw(seed, Limits{})
		for _, f := range q.Faults[len(p.Faults):] {
			switch {
			case !f.Outage():
				deaths++
			case f.Node == sim.AnyNode:
				all++
			default:
				ones++
			}
		}
		if n := len(q.lost()); n > durable.expendable(min(q.Index, q.Data)) {
			t.Errorf("%d nodes may be gone in the end: %s", n, q)
		}
		if q.Faults = q.Faults[:len(p.Faults)]; p.String() != q.String() {
			t.Fatalf("%s\n%s", p, q)
		}
	}
	if ones < 50 || all < 100 || deaths < 20 {
		t.Errorf("%d outages of a node, %d of all, %d deaths behind them", ones, all, deaths)
	}
	p, err := Parse("work=i0:8 faults=power node=* at=10µs for=10µs")
	if err != nil {
		t.Fatal(err)
	}
	if f := s.Run(p); f == nil || f.Guilt != BadPlan {
		t.Errorf("nodes of a pool come back that does not: %v", f)
	}
}

// A run is the same to the byte, and its replay reads as a story.
func TestReplay(t *testing.T) {
	line := "seed=3 nodes=2 index=1 data=1 net=500ns-2µs,tear,reorder fly=0.1,50µs cache pause=3µs " +
		"work=i0:8,u0:40/g0,d0 faults=crash client=worker-0 verb=3"
	p, err := Parse(line)
	if err != nil || p.String() != line {
		t.Fatalf("%v: %s", err, p)
	}
	var first, second bytes.Buffer
	for _, b := range []*bytes.Buffer{&first, &second} {
		if f, err := toySubject("").Replay(p, b); f != nil || err != nil {
			t.Fatal(f, err)
		}
	}
	if first.String() != second.String() {
		t.Error("two replays differ")
	}
	for _, want := range []string{
		"plan: " + line, `worker-0 begins: insert of key-0, value w0.1`, `answers: w1 get "key-0" -> not found`,
		"worker-0 crashes", "elected master", "recovered in", "lands", "FAA", "verdict: all is well",
	} {
		if !strings.Contains(first.String(), want) {
			t.Errorf("no %q in\n%s", want, &first)
		}
	}
}

// Dead nodes are gone at the end, and spares stand for them. Nothing of the toy is on node 1.
func TestNodesDie(t *testing.T) {
	coroutines(t)
	for line, want := range map[string]string{
		"nodes=3 spares=1 work=i0:8,u0:8 faults=crash node=1 verb=1": "node 1 is gone, " +
			"and spare 2 does not stand for it",
		"nodes=3 spares=1 work=i0:8,u0:8 faults=crash node=1 at=20µs; crash node=2 at=30µs":     "",
		"nodes=2 work=i0:8,u0:8 faults=crash node=1 verb=1":                                     "",
		"nodes=3 spares=1 work=i0:8,u0:8 faults=partition client=keeper-1 node=1 at=0s for=1ms": "",
	} {
		p, err := Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		r, f := toySubject("").play(p, nil)
		if want == "" && f != nil || want != "" &&
			(f == nil || f.Guilt != Unrecovered || !strings.Contains(f.Error(), want)) {
			t.Errorf("%s: %v, want %q", line, f, want)
		}
		if deaths := uint64(strings.Count(line, "crash node")); r.stats.Deaths != deaths {
			t.Errorf("%s: %d deaths", line, r.stats.Deaths)
		}
		if f := toySubject("spare 2").Run(p); f != nil && p.Spares > 0 {
			t.Errorf("with a spare: %s: %v", line, f)
		}
	}
}

// A recovery that deaths cut short has all of its time again.
func TestDeathsGiveTime(t *testing.T) {
	coroutines(t)
	line := "nodes=3 spares=1 work=i0:8 faults=crash node=1 at=20µs"
	for k := range 3 {
		line += fmt.Sprintf("; crash client=keeper-%d verb=500", k) // while it restores
	}
	p, err := Parse(line)
	if err != nil {
		t.Fatal(err)
	}
	r, f := toySubject("slow").play(p, nil)
	if f != nil || r.stats.Crashes != 3 {
		t.Errorf("%d crashes: %v", r.stats.Crashes, f)
	}
}

// What a keeper does is done again by another when it crashes in the midst of it.
func TestKeepersCrash(t *testing.T) {
	coroutines(t)
	s := toySubject("")
	crashed := false
	for verb := uint64(1); verb < 60; verb++ {
		p := &Plan{Seed: 1, Shape: Shape{Nodes: 1, Index: 1, Data: 1}, Net: Net{Min: 500, Max: 2000},
			Work: [][]Op{{{1, 0, 8}, {2, 0, 8}}, {{0, 0, 0}}},
			Faults: sim.Faults{{Kind: sim.CrashFault, Client: "worker-0", Verb: 5},
				{Kind: sim.CrashFault, Client: "keeper-0", Verb: verb},
				{Kind: sim.CrashFault, Client: "keeper-1", Verb: verb}}}
		r, f := s.play(p, nil)
		if f != nil {
			t.Fatalf("crash at verb %d: %v", verb, f)
		}
		crashed = crashed || r.stats.Crashes == 3
	}
	if !crashed {
		t.Error("no two keepers crashed")
	}
}
