package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// Program is a protocol reduced to its verbs, to measure their cost alone. Each client repeats one
// operation, each time on an object that it draws evenly. Clients never conflict.
type Program struct {
	Profile string // of the hardware
	// Trips are batches, each of which begins when the one before is complete.
	Trips [][]BareVerb
	// Objects that there are, on one memory node. Each has places for its data, its lock and its
	// pointer.
	Objects, Clients int
	Duration         time.Duration // in virtual time
	Seed             uint64
}

// BareVerb is a verb of a Program.
type BareVerb struct {
	Verb  rdma.Verb // Read, Write or CompareSwap
	Place Place
	Bytes int // of READs and WRITEs
}

// Place is the part of an object, or of a client's memory, that a verb accesses.
type Place uint8

// The places.
const (
	OfData Place = iota
	OfLock
	OfPointer
	OfLog // the client's own
	OfLogState
	places
)

// mostPlace bounds what a verb of a Program reads or writes.
const mostPlace = 4 << 10

// Ran is the result of a Program.
type Ran struct {
	Throughput float64        // operations a second
	Latency    runner.Latency // microseconds
	LinkOut    float64        // for which share of the time the memory node's link was busy
}

// Run runs a program. An error is a workloads.UsageError where there is no such profile, or tells
// why the simulation broke off. When ctx is cancelled it returns ctx's error.
func (p Program) Run(ctx context.Context) (*Ran, error) {
	profile, err := sim.LookupProfile(p.Profile)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	if p.Objects < 1 || p.Clients < 1 || p.Clients > maxClients || p.Duration <= 0 || len(p.Trips) == 0 {
		return nil, workloads.Usagef("%d clients, %d objects, %d trips for %v: want some of each", p.Clients, p.Objects,
			len(p.Trips), p.Duration)
	}
	o := profile.Options(p.Seed, 1)
	o.AllowMixing = true // locks are released by WRITEs, as in the paper
	o.Memory, o.Clients, o.Limit = uint64(p.Objects+p.Clients)*uint64(places)*mostPlace, p.Clients, p.Duration+patience
	s := sim.New(o)
	defer s.Close()
	var h workloads.Histogram
	var failed error
	for i := range p.Clients {
		s.Go(ClientName(i), func(ep rdma.Endpoint) {
			ep.Sleep(time.Duration(i+1) * apart)
			rnd := rand.New(rand.NewPCG(p.Seed, uint64(i)))
			for failed == nil && ep.Now() < p.Duration && ctx.Err() == nil {
				start := ep.Now()
				if err := p.once(ep, uint64(rnd.IntN(p.Objects)), uint64(p.Objects+i)); err != nil {
					failed = fmt.Errorf("client %d: %w", i, err)
				}
				if ep.Now() <= p.Duration {
					h.Record(ep.Now() - start)
				}
			}
		})
	}
	if err := errors.Join(s.Run(), failed, ctx.Err()); err != nil {
		return nil, err
	}
	u := s.Usage()[0]
	return &Ran{Throughput: float64(h.Count()) / p.Duration.Seconds(), Latency: runner.Summarize(&h),
		LinkOut: float64(u.LinkOut) / float64(p.Duration)}, nil
}

// once does the operation on an object. log is the client's own.
func (p *Program) once(ep rdma.Endpoint, object, log uint64) error {
	for _, verbs := range p.Trips {
		b := ep.Batch()
		for _, v := range verbs {
			of := object
			if v.Place >= OfLog {
				of = log
			}
			at := rdma.At(0, (of*uint64(places)+uint64(v.Place))*mostPlace)
			switch v.Verb {
			case rdma.Read:
				b.Read(at, v.Bytes)
			case rdma.Write:
				b.Write(at, b.Alloc(v.Bytes))
			default:
				b.CompareSwap(at, 0, 0)
			}
		}
		err := ep.Post(b)
		if err == nil {
			err = ep.Wait(b, rdma.All, time.Second)
		}
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}
