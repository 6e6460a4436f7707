// Package virtual runs stores in virtual time, explores them there, and replays recordings.
package virtual

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/recording"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/simulate"
	"github.com/farkv/farkv/workloads/ycsb"
)

// Simulation is a run in virtual time, as users ask for it. Zero values mean the workload's, or the
// store's, own. Of Config it says itself what Complete fills in: the Spec, the Options' Own, the
// Faults, the Changes, and of the Pool what the Spec tells.
type Simulation struct {
	simulate.Config // WarmUp negative: as many as Ops
	simulate.Workload
	// options of the store; without stores.CacheBytes a client's cache has room for all records
	Own           stores.Values
	Crashes       []string // "node 1@5s", "client 3@1s"
	Outages       []string // losses of power: "node 1@5s for 1ms", "all@5s for 1ms"
	OtherFaults   []string // as package sim writes them
	Joins, Leaves []string // "16@3s"
	// Record names a file for a recording of the run: see package recording. Without an Interval a
	// sample is taken each hundredth of the Duration, or without that each millisecond.
	Record string
}

// Set sets an option of the store.
func (s *Simulation) Set(option string, value any) { s.Own = s.Own.With(stores.Values{option: value}) }

// ServedProfile and ServedNodes are where stores with servers are simulated unless something else
// is said: on Rowan's testbed.
const ServedProfile, ServedNodes = "rowan-testbed", 6

const (
	defaultSimOps = 1_000_000
	servedSimOps  = 100_000 // of stores with servers: their tasks are simulated, too
	maxSimOps     = 1 << 32
	// eachOp is about the least time that an operation takes on the profiles' networks: it bounds
	// what a run that ends by time may insert.
	eachOp = 4 * time.Microsecond
)

// Run simulates.
func (s *Simulation) Run(ctx context.Context) (*Simulated, error) {
	c, err := s.Complete()
	if err != nil {
		return nil, err
	}
	run := simulate.Run
	if s.Record != "" {
		run = s.record
	}
	r, err := run(ctx, c)
	if err != nil {
		return nil, s.explain(fmt.Errorf("simulate %s: %w", s.Store, err))
	}
	return &Simulated{Workload: s.Name, Title: s.Title(), Result: r}, nil
}

// record simulates and records.
func (s *Simulation) record(ctx context.Context, c simulate.Config) (*simulate.Result, error) {
	if c.Interval == 0 {
		c.Interval = cmp.Or(c.Duration/100, time.Millisecond)
	}
	file, err := recording.Create(s.Record, "farkv sim run "+s.Store)
	if err != nil {
		return nil, err
	}
	c.Sample = func(sample *telemetry.Sample) {
		if err == nil {
			err = file.Add(sample)
		}
	}
	r, failed := simulate.Run(ctx, c)
	if err = errors.Join(failed, err, file.Close()); err != nil {
		return nil, err
	}
	if s.Interval == 0 {
		r.Points = nil // which were not asked for
	}
	return r, nil
}

// explain adds to an error of a simulation what its user can do.
func (s *Simulation) explain(err error) error {
	return workloads.Explain(err, []workloads.Hint{
		{Of: []error{rdma.ErrFull}, Say: "--records sizes the index; --memory gives each memory node more, " +
			"without it records and clients do"}})
}

// Complete returns what Run simulates. Errors are workloads.UsageErrors.
func (s *Simulation) Complete() (c simulate.Config, err error) {
	p, err := s.Read()
	if err != nil {
		return c, err
	}
	kind, err := stores.Lookup(s.Store)
	if err == nil {
		err = kind.Heeds(s.Own)
	}
	if err != nil {
		return c, workloads.Usagef("%v", err)
	}
	c = s.Config
	c.Target, c.Options.Own = p.GetFloat64("target", 0), kind.Choose(s.Own, stores.Opened)
	usual := int64(defaultSimOps)
	if kind.Serve != nil {
		usual = servedSimOps
	}
	if c.Ops == 0 && c.Duration == 0 {
		if c.Ops = p.GetInt64("operationcount", 0); c.Ops <= 0 || c.Ops > maxSimOps {
			c.Ops = usual
		}
	}
	if c.WarmUp < 0 {
		c.WarmUp = c.Ops
		if c.Ops == 0 {
			c.WarmUp = usual
		}
	}
	most := c.Ops
	if most == 0 {
		most = int64(c.Duration/eachOp) * int64(c.Clients*max(c.InFlight, 1))
	}
	if err := ycsb.Set(p, "operationcount", strconv.FormatInt(most+c.WarmUp, 10)); err != nil {
		return c, err
	}
	if c.Spec, err = runner.ReadSpec(p); err != nil {
		return c, err
	}
	c.Spec.ShortKeys = s.ShortKeys
	c.Pool.Own, c.Pool.PairBytes = kind.Choose(s.Own, stores.Made), c.Spec.PairBytes()
	c.Pool.KeyBytes = c.Spec.KeyBytes()
	c.Pool.Records = uint64(c.Spec.RecordCount + c.Spec.ExpectedInserts())
	if c.Changes, err = s.changes(); err != nil {
		return c, err
	}
	c.Faults, err = s.faults()
	return c, err
}

// changes parses the flags that say when how many clients join and leave.
func (s *Simulation) changes() (list []simulate.Change, err error) {
	read := func(flag string, texts []string, sign int) {
		for _, text := range texts {
			number, at, ok := strings.Cut(text, "@")
			n, wrong := strconv.Atoi(strings.TrimSpace(number))
			d, late := time.ParseDuration(strings.TrimSpace(at))
			if !ok || wrong != nil || late != nil || n < 1 || d < 0 {
				err = workloads.Usagef("--%s %s: want a number of clients and a time, such as 16@3s", flag, text)
				return
			}
			list = append(list, simulate.Change{At: d, Clients: sign * n})
		}
	}
	read("join", s.Joins, 1)
	read("leave", s.Leaves, -1)
	simulate.SortChanges(list)
	return list, err
}

// faults writes what goes wrong as package sim reads it.
func (s *Simulation) faults() (string, error) {
	var all []string
	for _, text := range s.Crashes {
		target, at, ok := strings.Cut(text, "@")
		kind, number, _ := strings.Cut(strings.TrimSpace(target), " ")
		n, wrong := strconv.Atoi(strings.TrimSpace(number))
		d, late := time.ParseDuration(strings.TrimSpace(at))
		if !ok || wrong != nil || late != nil || n < 0 || d < 0 || kind != "node" && kind != "client" {
			return "", workloads.Usagef(
				`--crash %q: want a node or a client and a time, such as "node 1@5s" or "client 3@200ms"`, text)
		}
		if kind == "node" {
			all = append(all, fmt.Sprintf("crash node=%d at=%v", n, d))
		} else {
			all = append(all, fmt.Sprintf("crash client=%q at=%v", simulate.ClientName(n), d))
		}
	}
	for _, text := range s.Outages {
		target, when, ok := strings.Cut(text, "@")
		at, lasts, _ := strings.Cut(when, " for ")
		d, late := time.ParseDuration(strings.TrimSpace(at))
		away, long := time.ParseDuration(strings.TrimSpace(lasts))
		node, _ := strings.CutPrefix(strings.TrimSpace(target), "node ")
		n, wrong := strconv.Atoi(strings.TrimSpace(node))
		if node == "all" {
			node, wrong = "*", nil
		}
		if !ok || wrong != nil || late != nil || long != nil || n < 0 || d < 0 || away <= 0 {
			return "", workloads.Usagef(
				`--power %q: want a node or all, a time and how long, such as "node 1@5s for 1ms" or `+
					`"all@50ms for 1ms"`, text)
		}
		all = append(all, fmt.Sprintf("power node=%s at=%v for=%v", node, d, away))
	}
	return strings.Join(append(all, s.OtherFaults...), "; "), nil
}

// Cluster is a profile that simulations can run on.
type Cluster struct {
	Name           string `json:"name"`
	Doc            string `json:"doc"`
	Source         string `json:"source"`
	Nodes          int    `json:"nodes"`
	ComputeNodes   int    `json:"compute_nodes"`
	ClientsPerNode int    `json:"clients_per_compute_node"`
}

// Clusters is the list of them.
type Clusters struct {
	Profiles []Cluster `json:"profiles"`
}

// Profiles lists the hardware that simulations can run on.
func Profiles() *Clusters {
	var c Clusters
	for _, p := range simulate.Profiles() {
		c.Profiles = append(c.Profiles, Cluster{p.Name, p.Doc, p.Source, p.Nodes, p.ComputeNodes, p.ClientsPerNode})
	}
	return &c
}
