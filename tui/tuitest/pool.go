// Package tuitest makes samples of a pool that does not exist, for tests and benchmarks of the
// monitor: the same seed, the same samples.
package tuitest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/telemetry"
)

// Begin is the time of the first sample.
var Begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// When things happen, in samples after the first: node 1 is broken, expelled, its replicas are
// mended and its place is filled; client 7 dies and is recovered.
const (
	Broken, Expelled, Mended, Restored = 120, 121, 123, 127
	Died, Recovered                    = 180, 184
)

// A Pool makes samples, one a second.
type Pool struct {
	Spares    int // 0: the place of node 1 is never filled
	r         *rand.Rand
	n         int
	nodes     []telemetry.Node
	processes []telemetry.Process
	clients   int
}

// NewPool returns a pool of three nodes and a spare that so many processes and clients use.
func NewPool(seed uint64, processes, clients int) *Pool {
	p := &Pool{Spares: 1, r: rand.New(rand.NewPCG(seed, 1)), clients: clients}
	for i := range 4 {
		p.nodes = append(p.nodes, telemetry.Node{
			ID: i, Address: fmt.Sprintf("10.0.0.%d:7070", 5+i), Role: "member", Up: true, Bytes: 8 << 30,
			Counts: &telemetry.NodeCounts{Node: i},
		})
	}
	p.nodes[3].Role = "spare"
	for i := range 2 {
		p.nodes[i].Server = []telemetry.Counter{{Name: "primaries", Count: uint64(47 + i)}}
	}
	p.nodes[0].PMem = &telemetry.PMem{DIMMs: []telemetry.DIMM{{ID: "0x0001"}, {ID: "0x0011"}}}
	p.nodes[2].PMem = &telemetry.PMem{Problem: "ipmctl: permission denied"}
	for i := range processes {
		p.processes = append(p.processes, telemetry.Process{
			Host: fmt.Sprintf("compute-%d", 1+i/4), PID: 4100 + 17*i, Life: uint64(i + 1), Name: []string{"go-ycsb",
				"orders", "index"}[i%3],
			Began: Begin.Add(-10 * time.Minute), Workers: 8,
			Own: []telemetry.Counter{{Name: "rule 1"}, {Name: "rule 2"}, {Name: "rule 3"}, {Name: "lost"},
				{Name: "cache hits"},
				{Name: "cache misses"}, {Name: "retries"}},
		})
	}
	return p
}

// Next returns the next sample.
func (p *Pool) Next() *telemetry.Sample {
	at := Begin.Add(time.Duration(p.n) * time.Second)
	s := &telemetry.Sample{
		At: at, Pool: "mine", Store: "fusee", Epoch: 12, Master: 4, MayDie: 1, Spares: p.Spares, Whole: true,
		Fill: []telemetry.Fill{{Of: "index slots", Used: 340_000 + uint64(p.n)*200, All: 1_000_000},
			{Of: "blocks", Used: 610 + uint64(p.n/10), All: 1000}},
		Memory: []telemetry.Use{{Purpose: "index", Count: 3, Bytes: 96 << 20}, {Purpose: "blocks", Count: 1830,
			Bytes: 15 << 30},
			{Purpose: "logs", Count: 64, Bytes: 256 << 20}, {Purpose: "free", Count: 1170, Bytes: 9 << 30}},
	}
	p.happen(s)
	p.clientsOf(s)
	p.work(s)
	for i := range p.nodes {
		n := p.nodes[i]
		if n.Counts != nil {
			c := *n.Counts
			n.Counts = &c
		}
		if n.PMem != nil {
			m := *n.PMem
			m.DIMMs = append([]telemetry.DIMM(nil), m.DIMMs...)
			n.PMem = &m
		}
		s.Nodes = append(s.Nodes, n)
	}
	p.n++
	return s
}

// happen changes the pool at the times at which something happens.
func (p *Pool) happen(s *telemetry.Sample) {
	tell := func(what, text string, node, client int, took time.Duration) {
		s.Events = append(s.Events, telemetry.Event{At: s.At, What: what, Text: text, Node: node, Client: client,
			Took:  took,
			Epoch: s.Epoch, Tenure: 3})
	}
	if p.n >= Expelled {
		s.Epoch, s.MayDie, s.Whole = 13, 0, false
	}
	switch p.n {
	case 0:
		s.Events = append(s.Events, telemetry.Event{At: s.At.Add(-5 * time.Minute), What: "elected",
			Text: "elected master (tenure 3)",
			Node: -1, Client: 4, Tenure: 3})
	case Broken:
		tell("broken", "node 1 killed by farkv crash", 1, 0, 0)
		p.nodes[1].Up, p.nodes[1].Counts = false, nil
	case Expelled:
		tell("expelled", "node 1 is gone: expelled in epoch 13", 1, 0, 0)
		p.nodes[1].Role = "gone"
	case Mended:
		tell("mended", "replicas mended in epoch 13, in 412 ms", -1, 0, 412*time.Millisecond)
	case Restored:
		if p.Spares > 0 {
			tell("restored", "node 3 stands for node 1 since epoch 13, after 3.8 s", 1, 0, 3800*time.Millisecond)
			p.nodes[3].Role, p.nodes[3].Replaces = "member", 2
			p.Spares = 0
		}
	case Recovered:
		tell("recovered", `client 7 "go-ycsb" recovered in 18.2 ms`, -1, 7, 18200*time.Microsecond)
	}
	filled := p.nodes[3].Replaces > 0
	s.Busy = p.n >= Expelled && p.n < Mended || p.n >= Mended && p.n < Restored && p.Spares > 0
	if filled {
		s.Whole, s.MayDie, s.Spares = true, 1, 0
	}
}

func (p *Pool) clientsOf(s *telemetry.Sample) {
	for i := range p.clients {
		c := telemetry.Client{ID: 1 + i, Name: "worker", State: "live"}
		if len(p.processes) > 0 {
			q := &p.processes[i%len(p.processes)]
			c.Name, c.PID = q.Name, q.PID
		}
		if c.ID == 7 && p.n >= Died && p.n < Recovered {
			c.State = "dead"
		}
		if c.ID != 7 || p.n < Recovered {
			s.Clients = append(s.Clients, c)
		}
	}
}

// work adds what happens in a second.
func (p *Pool) work(s *telemetry.Sample) {
	slow := 1.0
	if p.n >= Broken && p.n < Mended {
		slow = 0.12
	} else if p.n >= Mended && p.n < Restored {
		slow = 0.8
	}
	wave := 1 + 0.12*math.Sin(float64(p.n)/40)
	for i := range p.processes {
		q := &p.processes[i]
		q.At = s.At.Add(-time.Duration(p.r.IntN(200)) * time.Millisecond)
		q.Oldest = time.Duration(20+p.r.IntN(60)) * time.Microsecond
		for k, share := range []float64{610e3, 430e3, 52e3} {
			n := share / float64(len(p.processes)) * slow * wave * (0.96 + 0.08*p.r.Float64())
			if telemetry.Kind(k) == telemetry.Get {
				n = n * (1 + slow) / 2 / slow // reads go on
			}
			p.operations(q, telemetry.Kind(k), uint64(n), slow)
		}
		if p.n >= Broken && p.n < Mended {
			q.Ops[telemetry.Update].Failed += 3
			q.Ops[telemetry.Update].Unknown += uint64(p.r.IntN(2))
		}
		s.Processes = append(s.Processes, *q)
	}
}

// operations adds n operations of a kind to a process, and what they do at the nodes.
func (p *Pool) operations(q *telemetry.Process, k telemetry.Kind, n uint64, slow float64) {
	o := &q.Ops[k]
	h := new(telemetry.Histogram)
	if o.Latency != nil {
		h.Merge(o.Latency)
	}
	median := []float64{3.4e3, 6.8e3, 9.1e3}[k] / math.Sqrt(slow)
	for range 300 {
		d := median * math.Exp(0.35*p.r.NormFloat64())
		if p.r.Float64() < 0.012 {
			d *= 4 + 20*p.r.Float64()
		}
		h.Record(time.Duration(d))
	}
	o.Latency = h
	o.OK += n
	o.Trips += n * []uint64{2, 4, 5}[k]
	own := append([]telemetry.Counter(nil), q.Own...)
	if k != telemetry.Get {
		own[0].Count += n * 96 / 100
		own[1].Count += n * 3 / 100
		own[2].Count += n / 100
		own[3].Count += n / 250
	}
	own[4].Count += n * 88 / 100
	own[5].Count += n * 12 / 100
	own[6].Count += n / 1000
	q.Own = own
	for i := range p.nodes {
		node := &p.nodes[i]
		if node.Counts == nil || node.Role == "spare" {
			continue
		}
		c := node.Counts
		if k == telemetry.Get {
			c.Reads += n
			c.BytesRead += n * 1100
			continue
		}
		c.Reads, c.Writes, c.Atomics = c.Reads+n/2, c.Writes+n, c.Atomics+n
		c.BytesRead, c.BytesWrote = c.BytesRead+n*100, c.BytesWrote+n*1100
		if node.PMem != nil {
			for d := range node.PMem.DIMMs {
				m := &node.PMem.DIMMs[d]
				m.WriteRequests += n * 9
				m.MediaWrites += n * (11 + uint64(d))
				m.ReadRequests += n * 4
				m.MediaReads += n * 6
			}
		}
	}
}

// Samples returns the first n.
func (p *Pool) Samples(n int) (all []*telemetry.Sample) {
	for range n {
		all = append(all, p.Next())
	}
	return all
}
