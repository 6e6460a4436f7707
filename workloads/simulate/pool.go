package simulate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads"
)

// pool is a simulated pool and the store that it holds.
type pool struct {
	sim     *sim.Sim
	kept    rdma.Fabric // as the master sees it
	kind    *stores.Kind
	inNICs  uint64 // bytes of each node that lie in its NIC's memory
	servers *stores.Servers
	// processes are those of the compute nodes, by their numbers; nil: clients share nothing.
	processes map[int]*stores.Process
	stores.Params
}

const (
	loaders = 8           // that load the records, one after the other
	spare   = loaders + 8 // identities beside the clients': loaders, the formatter, and the pool's keepers
)

// newPool makes the empty pool of c. began is the virtual time at which measuring begins.
func newPool(c *Config, began time.Duration) (*pool, error) {
	kind, err := stores.Lookup(c.Store)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	if c.Spec.Scan > 0 && !kind.Scans {
		return nil, workloads.Usagef("the workload scans, and %s has no scans", kind.Name)
	}
	profile, err := sim.LookupProfile(c.Profile)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	p := c.Pool
	p.Workers = c.Clients*c.InFlight + c.victims()
	for _, change := range c.Changes {
		p.Workers += max(change.Clients, 0) * c.InFlight
	}
	p.Clients = p.Workers + spare
	p = kind.Size(p)
	if err := p.Check(kind); err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	o := profile.Options(c.Seed, p.Nodes)
	o.Memory, o.Clients, o.Handler = p.Memory, p.Clients+p.Servers, node.Serve
	o.MaxEvents, o.Limit, o.Trace = 1<<62, began+c.Duration+patience, c.traceFrom(began)
	o.Hardware.DeviceFence = o.Hardware.DeviceFence && !c.StallFences
	if c.NodeCores > 0 {
		o.Hardware.NodeCores = c.NodeCores
	}
	if err := change(&o, c.Hardware); err != nil {
		return nil, err
	}
	slow(&o, c.Slow)
	if o.Faults, err = c.faults(p.Nodes, began); err != nil {
		return nil, err
	}
	if n := outages(o.Faults); n > 0 {
		if !kind.Durable {
			return nil, workloads.Usagef("a pool of %s does not outlive a loss of power, or a restart", kind.Name)
		}
		o.PMem = &profile.PMem
		if o.PMem.DIMMs == 0 {
			o.PMem = new(pmem.Testbed())
		}
		o.Clients += n * p.Servers // those of before wait to be recovered
	}
	if o.Device, err = c.device(kind, p, o.Hardware); err != nil {
		return nil, err
	}
	s := sim.New(o)
	if err := kind.Make(s, p); err != nil {
		s.Close()
		if errors.Is(err, stores.ErrParams) || errors.Is(err, rdma.ErrFull) {
			err = workloads.Usagef("%v", err)
		}
		return nil, err
	}
	made := &pool{sim: s, kept: s, kind: kind, Params: p}
	if outages(o.Faults) > 0 {
		made.kept = sim.Returning{Sim: s}
	} else if c.Silence > 0 {
		made.kept = &silent{Sim: s, least: c.Silence, since: map[uint64]time.Duration{}}
	}
	if c.Processes {
		made.processes = map[int]*stores.Process{}
	}
	if made.servers, err = kind.Start(s); err != nil {
		s.Close()
		return nil, err
	}
	if len(o.Device) > 0 {
		made.inNICs = o.Device[0].Bytes
	}
	return made, nil
}

// device returns the part of the pool in the device memory of its nodes' NICs: what the store wants
// there, if it fits.
func (c *Config) device(kind *stores.Kind, p stores.Params, h *sim.Hardware) (list []sim.Range, err error) {
	if kind.Device == nil || c.NoDevice {
		return nil, nil
	}
	offset, bytes, err := kind.Device(p)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	for n := range p.Nodes {
		if bytes <= h.DeviceBytes {
			list = append(list, sim.Range{Node: n, Offset: offset, Bytes: bytes})
		}
	}
	return list, nil
}

// faults parses the faults. Their times count from where measuring begins.
func (c *Config) faults(nodes int, began time.Duration) (sim.Faults, error) {
	faults, err := sim.ParseFaults(c.Faults)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	for i := range faults {
		f := &faults[i]
		if err := f.Check(nodes); err != nil {
			return nil, workloads.Usagef("%v", err)
		}
		if f.Verb == 0 {
			f.At += began
		}
	}
	return faults, nil
}

// outages returns how many faults take nodes away that come back.
func outages(faults sim.Faults) (n int) {
	for _, f := range faults {
		if f.Outage() {
			n++
		}
	}
	return n
}

// session is a client's store and the endpoint that it stands on.
type session struct {
	store client.Store
	ep    rdma.Endpoint
}

// open opens the store through an endpoint.
func (p *pool) open(ep rdma.Endpoint, o stores.Options) (session, error) {
	o.Fabric = p.sim
	store, err := p.kind.Open(ep, o)
	return session{store, ep}, err
}

// processOf returns the process of a client's compute node. nil: each client is a process of its
// own.
func (p *pool) processOf(w *sim.Worker) *stores.Process {
	if p.processes == nil {
		return nil
	}
	n := w.ComputeNode()
	if p.processes[n] == nil {
		p.processes[n] = new(stores.Process)
	}
	return p.processes[n]
}

func (s session) close() error { return client.Leave(s.store, s.ep, nil) }

// load inserts the records. Outside the simulation's Run that takes no time, beside Config.Loading.
func (r *run) load() error {
	if r.servers != nil {
		return nil // they do nothing then: see ready
	}
	for i := range loaders {
		ep, err := r.sim.Open(fmt.Sprintf("loader %d", i))
		if err != nil {
			return err
		}
		s, err := r.pool.open(ep, r.kind.Uncached(stores.Options{}))
		if err != nil {
			return err
		}
		var failed error
		w := workloads.NewWorker(r.core, s.rows(r.Spec), newEnv(ep, r.Seed, ^i), workloads.Share{
			Worker: i, Workers: loaders, Load: true, Failed: func(_ workloads.Op, err error) { failed = err },
			Poll: r.pacing(ep),
		})
		w.Run()
		if err := errors.Join(failed, s.close()); err != nil {
			return err
		}
	}
	return nil
}

// pacing makes a loader rest after each turn, so that loading takes Config.Loading.
func (r *run) pacing(ep rdma.Endpoint) func(*workloads.Tally) bool {
	each, n := time.Duration(int64(r.Loading)/max(r.Spec.InsertCount/turn, 1)), 0
	return func(*workloads.Tally) bool {
		if n++; each > 0 && n%turn == 0 {
			ep.Sleep(each)
		}
		return !r.stop.Load()
	}
}

func (s session) rows(spec *workloads.Spec) *workloads.Rows {
	return workloads.NewRows(s.store, s.ep.Counters(), spec.Table, spec.FieldCount)
}

// env is a worker's time, which begins with what is measured, and its own generator: the same one
// as in go-ycsb.
type env struct {
	ep    rdma.Endpoint
	began time.Duration
	rnd   *rand.Rand
}

func newEnv(ep rdma.Endpoint, seed uint64, worker int) *env {
	return &env{ep: ep, rnd: rand.New(rand.NewPCG(seed, uint64(worker)+1))}
}

func (e *env) Now() time.Duration    { return e.ep.Now() - e.began }
func (e *env) Sleep(d time.Duration) { e.ep.Sleep(d) }
func (e *env) Rand() *rand.Rand      { return e.rnd }
