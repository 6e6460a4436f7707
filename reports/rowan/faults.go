package rowan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// Of the paper's failover (section 6.5).
const (
	failoverServers = 6
	failoverWindow  = 2 * time.Millisecond // "throughput is recorded per 2ms"
	failoverLease   = 10 * time.Millisecond
	failoverCalm    = 20 * time.Millisecond // before the death; the paper's is 100 ms
	failoverAfter   = 100 * time.Millisecond
	failoverRow     = 5 // windows
)

// failoverSize is how large the pool is in which a server dies.
type failoverSize struct {
	clients int
	records int64
}

// faulty returns a run for faults to be added.
func (s *size) faulty(duration time.Duration) virtual.Simulation {
	return virtual.Simulation{
		Config: simulate.Config{
			Store: "rowan", Profile: "rowan-testbed", Hardware: []string{fmt.Sprintf("NodeTimeout=%v", failoverLease)},
			Pool:    stores.Params{Nodes: failoverServers, Memory: 512 << 20},
			Options: stores.Options{Timeout: 10 * failoverLease}, Clients: s.failover.clients,
			WarmUp:   s.failover.records / 10,
			Duration: duration, Interval: failoverWindow, Lease: failoverLease, Seed: s.seed,
		},
		Workload: simulate.Workload{Name: "rowan-zippydb-a", Records: s.failover.records},
		Own:      stores.Values{"server-workers": 4, "segment-bytes": 256 << 10},
	}
}

func failoverCases(s *size) []eval.Trial {
	o := s.faulty(failoverCalm + failoverAfter)
	o.Crashes = []string{fmt.Sprintf("node 1@%v", failoverCalm)}
	return []eval.Trial{{Name: "failover", Simulation: o}}
}

// Of the cold start: the power of all nodes is cut.
const (
	coldAt      = 4 * time.Millisecond
	coldAway    = time.Millisecond
	coldRun     = 80 * time.Millisecond
	coldObjects = 10e9 // of the paper's instance
)

func coldCases(s *size) []eval.Trial {
	o := s.faulty(coldAt + coldRun)
	o.Outages = []string{fmt.Sprintf("all@%v for %v", coldAt, coldAway)}
	return []eval.Trial{{Name: "cold start", Simulation: o}}
}

func coldTable(s *size, r eval.Results, p *eval.Part) {
	x := r["cold start"]
	p.SetUp = fmt.Sprintf("As in the part failover, with %d pairs, three replicas of each. The power of all "+
		"nodes is away for %v.", s.failover.records, coldAway)
	p.Header = []string{"until", "ms", "million objects a second"}
	rate := func(took float64) float64 { return float64(s.failover.records) / took * 1e3 }
	served := 0.0
	for _, step := range []struct{ name, event string }{
		{"all servers have read their logs", "term 2 is committed"},
		{"replicas are compared", "all replicas have the same"},
		{"all is served", "term 3 is committed"},
	} {
		took := behind(x, coldAt+coldAway, step.event)
		if served = took; took == 0 {
			break
		}
		p.Rows = append(p.Rows, []eval.Cell{eval.Text("%s", step.name), eval.Text("%.1f", took), eval.Mops(rate(took))})
	}
	if served == 0 {
		p.Notes = append(p.Notes, "The pool was not served again.")
		return
	}
	p.Same("cold-start", coldObjects/rate(served),
		eval.Unknown("One task of a server reads its logs, and another one compares what replicas have, which the "+
			"paper does not do."))
}

func failoverTable(s *size, r eval.Results, p *eval.Part) {
	x, n := r["failover"], int(failoverCalm/failoverWindow)
	p.SetUp = fmt.Sprintf("Profile rowan-testbed, undivided: %d servers with 4 workers, %d clients, %d pairs of "+
		"ZippyDB's sizes, 50 %%\n"+
		"PUTs. Leases of %v, and nodes are down that leave a READ unanswered for as long. A server dies at 0.",
		failoverServers, s.failover.clients, s.failover.records, failoverLease)
	p.Header = []string{"ms", "Mops"}
	for i := 0; i+failoverRow <= len(x.Points) && i < n+int(failoverAfter/failoverWindow); i += failoverRow {
		at := time.Duration(i)*failoverWindow - failoverCalm
		p.Rows = append(p.Rows, []eval.Cell{eval.Text("%d", at.Milliseconds()),
			eval.Mops(meanThroughput(x.Points[i : i+failoverRow]))})
	}
	gone, committed := behind(x, failoverCalm, " is gone"), behind(x, failoverCalm, " is committed")
	before := meanThroughput(x.Points[:n])
	served := slices.IndexFunc(x.Points[n+1:], func(p simulate.Point) bool { return p.Throughput > before/4 }) + 1
	p.Same("failover-commit", committed, eval.Unknown("The server is fenced off after %.1f ms, of which a READ that "+
		"nothing answers takes a lease; fenced off, it needs no wait for the end of its lease. Registers whose "+
		"replicas take time, as Zookeeper's do, are not simulated.", gone))
	p.Same("failover-promote", float64(served)*eval.Millis(failoverWindow)-committed,
		eval.Unknown("Up to the first %v with a quarter of the throughput. How much is to be digested and given to "+
			"others depends on the load, which is far less here.", failoverWindow))
	after := meanThroughput(x.Points[len(x.Points)-n-failoverRow : len(x.Points)-failoverRow])
	p.Claim("failover-serves", eval.All(eval.Is(served > 0), eval.More(after, before/2)),
		fmt.Sprintf("%.1f Mops before, and %.1f in the end", before/1e6, after/1e6), eval.Unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("Other servers copy what the dead one had once all is served, and are stored as complete "+
			"together. Of %d operations the outcome is unknown.", x.Failed))
}

// behind returns how long after a time a master first reported something, in milliseconds. 0:
// never.
func behind(x *simulate.Result, from time.Duration, what string) float64 {
	for _, e := range x.Events {
		if at := 1e3*e.Seconds - eval.Millis(from); at > 0 && strings.Contains(e.What, what) {
			return at
		}
	}
	return 0
}

func meanThroughput(points []simulate.Point) float64 {
	sum := 0.0
	for _, p := range points {
		sum += p.Throughput
	}
	return sum / float64(max(1, len(points)))
}
