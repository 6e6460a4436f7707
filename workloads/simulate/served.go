package simulate

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads"
)

// Servers work only inside the simulation's Run. So clients of stores with servers load the
// records, read them and warm up there, before measuring begins. All of that takes virtual time.

// What an operation of one client takes then, at most, and one of many, which the servers do at the
// same time.
const (
	servedAlone = 50 * time.Microsecond
	servedEach  = 2 * time.Microsecond
	servedLeast = 100 * time.Millisecond // beside: servers begin
)

// servedSetUp bounds how long setting up takes.
func (c *Config) servedSetUp() time.Duration {
	workers := int64(max(c.Clients, 1) * max(c.InFlight, 1))
	ops := c.Spec.RecordCount + c.WarmUp
	if c.Known {
		ops += c.Spec.RecordCount * workers
	}
	return servedLeast + time.Duration(ops)*max(servedAlone/time.Duration(workers),
		servedEach)*time.Duration(max(c.Slow, 1))
}

// ready brings a client of the beginning to where measuring begins; false: the run is over.
func (r *run) ready(p *participant) bool {
	if r.servers == nil {
		return true
	}
	err := errors.Join(r.loads(p), r.servers.Err())
	if err == nil && r.Known {
		err = r.knows(p)
	}
	if err == nil {
		err = r.warms(p)
	}
	if late := r.sim.Now() - r.began; err == nil && late > 0 {
		err = errLate(late)
	}
	if err != nil && r.failed == nil {
		r.failed = err
	}
	if r.failed != nil || r.stop.Load() {
		r.stop.Store(true)
		return false
	}
	p.ep.Sleep(r.began - r.sim.Now())
	if r.idle == nil {
		r.idle = r.sim.Usage()
	}
	return true
}

// workers is how many participants there are in the beginning.
func (r *run) workers() int { return r.Config.Clients * r.InFlight }

// loads lets a client insert its share of the records, and wait for the others.
func (r *run) loads(p *participant) error {
	var failed error
	workloads.NewWorker(r.core, p.rows(r.Spec), newEnv(p.ep, r.Seed, ^p.number), workloads.Share{
		Worker: p.number, Workers: r.workers(), Load: true, Failed: func(_ workloads.Op, err error) { failed = err },
		Poll: func(*workloads.Tally) bool { return failed == nil && !r.stop.Load() },
	}).Run()
	for r.loaded++; r.loaded < r.workers() && failed == nil && !r.stop.Load(); {
		p.ep.Sleep(turnTime)
	}
	if failed != nil {
		return fmt.Errorf("load: %w", failed)
	}
	return nil
}

// warms lets a client do its part of the warm-up.
func (r *run) warms(p *participant) error {
	var failed error
	seed := r.Seed
	if r.Fresh {
		seed = ^seed
	}
	workloads.NewWorker(r.core, p.rows(r.Spec), newEnv(p.ep, seed, p.number), workloads.Share{
		Worker: p.number, Workers: r.workers(),
		Failed: func(op workloads.Op, err error) {
			failed = fmt.Errorf("warm up: %s: %w", op, err)
		},
		Poll: func(*workloads.Tally) bool {
			if r.warmed >= r.WarmUp || failed != nil || r.stop.Load() {
				return false
			}
			r.warmed++
			return true
		},
	}).Run()
	return failed
}

// traceFrom returns the Trace from the time at which measuring begins. It leaves out the set-up.
func (c *Config) traceFrom(began time.Duration) func(sim.Event) {
	if c.Trace == nil {
		return nil
	}
	return func(e sim.Event) {
		if e.At >= began {
			c.Trace(e)
		}
	}
}

// since returns what was used in addition to before.
func since(all, before []sim.NodeUsage) []sim.NodeUsage {
	for i := range before {
		u, b := &all[i], &before[i]
		u.Messages, u.BytesIn, u.BytesOut = u.Messages-b.Messages, u.BytesIn-b.BytesIn, u.BytesOut-b.BytesOut
		u.NIC, u.LinkIn, u.LinkOut = u.NIC-b.NIC, u.LinkIn-b.LinkIn, u.LinkOut-b.LinkOut
		u.PCIeIn, u.PCIeOut, u.Atomics, u.CPU = u.PCIeIn-b.PCIeIn, u.PCIeOut-b.PCIeOut, u.Atomics-b.Atomics, u.CPU-b.CPU
	}
	return all
}
