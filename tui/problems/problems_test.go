package problems_test

import (
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/problems"
	"github.com/farkv/farkv/tui/tuitest"
)

const n = 40 // samples

// cases change the samples of a pool that is well.
var cases = []struct {
	name   string
	change func(s *telemetry.Sample, i int)
	later  time.Duration // after the last sample
	want   string
	v      problems.Severity
}{
	{"well", func(*telemetry.Sample, int) {}, 0, "", 0},
	{"gone", func(s *telemetry.Sample, i int) {
		s.Nodes[1].Up, s.Spares, s.MayDie, s.Whole = i < n-12, 0, 0, i < n-12
	}, 0, "node 1 gone for 11 s, no spare, no further death survived", problems.Failure},
	{"being filled", func(s *telemetry.Sample, i int) { s.Nodes[1].Up, s.Busy = i < n-3, true }, 0,
		"node 1 gone for 2 s, a spare is being filled, 1 more node may die", problems.Warning},
	{"lost", func(s *telemetry.Sample, _ int) { s.Lost, s.Nodes[1].Up = true, false }, 0, "data lost",
		problems.Loss},
	{"mending", func(s *telemetry.Sample, i int) { s.Busy = i > n-5 }, 0, "replicas are being mended for 3 s",
		problems.Warning},
	{"not whole", func(s *telemetry.Sample, i int) { s.Whole = i < n-4 }, 0, "replicas not whole for 3 s",
		problems.Warning},
	{"no further death", func(s *telemetry.Sample, _ int) { s.MayDie = 0 }, 0, "no further death survived",
		problems.Notice},
	{"no master", func(s *telemetry.Sample, i int) {
		if i >= n-8 {
			s.Master = 0
		}
	}, 0, "no master for 7 s", problems.Warning},
	{"dead client", func(s *telemetry.Sample, i int) {
		if i >= n-9 {
			s.Clients[6].State = "dead"
		}
	}, 0, "client 7 dead for 8 s, not recovered", problems.Warning},
	{"unknown outcomes", func(s *telemetry.Sample, i int) {
		s.Processes[0].Ops[telemetry.Update].Unknown += uint64(i / (n - 1) * 3)
	}, 0,
		"3 writes of unknown outcome", problems.Warning},
	{"failed operations", func(s *telemetry.Sample,
		i int) {
		s.Processes[0].Ops[telemetry.Get].Failed += uint64(i / (n - 1))
	}, 0,
		"1 operation failed", problems.Warning},
	{"stuck", func(s *telemetry.Sample, _ int) { s.Processes[1].Oldest = 4 * time.Second }, 0,
		"an operation of orders (process 4117 on compute-1) runs for 4 s", problems.Failure},
	{"full", func(s *telemetry.Sample, _ int) { s.Fill[0].Used = s.Fill[0].All * 93 / 100 }, 0,
		"index slots 93 % full", problems.Warning},
	{"quite full", func(s *telemetry.Sample, _ int) { s.Fill[0].Used = s.Fill[0].All }, 0,
		"index slots 100 % full", problems.Failure},
	{"a stale record", func(s *telemetry.Sample, i int) {
		s.Processes[0].At = tuitest.Begin.Add(time.Duration(min(i, 20)) * time.Second)
	}, 0,
		"go-ycsb (process 4100 on compute-1) tells nothing for 19 s", problems.Warning},
	{"a part unseen", func(s *telemetry.Sample, _ int) { s.Problem = "node 2: no route to host" }, 0,
		"node 2: no route", problems.Warning},
	{"unseen", func(s *telemetry.Sample, _ int) { s.Problem = "connection refused" }, 9 * time.Second,
		"the pool was last seen 9 s ago: connection refused", problems.Failure},
	{"counters missing", func(s *telemetry.Sample, _ int) { s.Nodes[2].Problem = "the token does not permit it" },
		0,
		"node 2 shows no counters: the token", problems.Notice},
	{"no room", func(s *telemetry.Sample, _ int) { s.More = 5 }, 0, "no room for the records of 5 more",
		problems.Notice},
}

// TestProblems reads the worst problem of each case.
func TestProblems(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := history.New()
			for i, s := range tuitest.NewPool(1, 2, 8).Samples(n) {
				c.change(s, i)
				h.Add(s)
			}
			all := problems.Find(h, h.Last.At.Add(c.later))
			if c.want == "" {
				if len(all) > 0 {
					t.Errorf("found %+v", all)
				}
				return
			}
			if len(all) == 0 || !strings.Contains(all[0].Text, c.want) || all[0].Severity != c.v {
				t.Errorf("found %+v, want first %q of severity %d", all, c.want, c.v)
			}
		})
	}
}
