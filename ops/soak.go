package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/soak"
)

// Soak puts ordinary load on a pool, in real time, and judges what its store makes of it: package
// soak.
type Soak struct {
	Of      string // the name of a store, for a small pool of this process; or the address of a pool
	Store   string // that uses the pool, such as fusee-nc, which has none of its own; "": the pool's
	Workers int
	Keys    int // that each worker uses again and again; 0: none, or what the store needs
	Length  time.Duration
	Seed    uint64
	Say     func(format string, args ...any) // told of the progress
}

// The pool of a Soak that names a store: so small that it is full again and again.
const (
	soakNodes   = 2
	soakRecords = 500
	soakBytes   = 1000
)

// Soaked is what a Soak found. Times are in microseconds.
type Soaked struct {
	Pool    string      `json:"pool"`
	Store   string      `json:"store"`
	Workers int         `json:"workers"`
	Seconds float64     `json:"seconds"`
	Seed    uint64      `json:"seed"`
	First   int         `json:"pairs_first"` // that filled the pool before the load
	Again   int         `json:"pairs_again"` // and behind it
	FullAt  float64     `json:"full_at"`     // soak.Result.FullAt: a share of the bytes of First
	Heap    int64       `json:"heap_bytes"`  // that this process has more than before the load
	Ops     []SoakedOps `json:"operations"`
	Sound   bool        `json:"sound"` // as farkv check says
	Damage  []string    `json:"damage,omitempty"`
}

// SoakedOps are one kind's.
type SoakedOps struct {
	Kind  string  `json:"kind"`
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_us"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Worst float64 `json:"worst_us"`
	Full  uint64  `json:"full"` // that found the pool full
}

// Run puts load on the pool, in which no other worker is at work, and which is to be empty, or
// nearly so: keys that a Soak has left there make the next one fail. The error says what is wrong;
// the Soaked holds what was measured, also then; nil: nothing was.
func (s *Soak) Run(ctx context.Context) (*Soaked, error) {
	if s.Say == nil {
		s.Say = func(string, ...any) {}
	}
	p, err := s.open()
	if err != nil {
		return nil, Explain(err, s.Of)
	}
	defer p.Close()
	all, err := clientsOf(p.Fabric)
	if err != nil {
		return nil, ExplainAt(fmt.Errorf("soak %s: %w", p.Address, err), p.Address)
	}
	for _, c := range living(all) {
		if c.Name != stores.KeeperName {
			return nil, workloads.Usagef("soak %s: client %d (%s) is at work there (hint: soak fills the pool and "+
				"empties it: take one of its own, or end the client)", p.Address, c.ID, c.Name)
		}
	}
	target, err := soak.Of(p)
	if err != nil {
		return nil, ExplainAt(fmt.Errorf("soak %s: %w", p.Address, err), p.Address)
	}
	o := soak.Options{Workers: s.Workers, Seed: s.Seed, Length: s.Length, Keys: s.Keys, Say: s.Say}
	r, err := soak.Run(ctx, target, o)
	out := s.soaked(p, &r)
	if errors.Is(err, client.ErrExists) {
		err = fmt.Errorf("%w (hint: a soak that failed or was killed may have left the key: take an empty pool)", err)
	}
	if err != nil {
		err = fmt.Errorf("soak %s: %w", p.Address, err)
		if len(r.Counts) == 0 {
			return nil, err // nothing was measured yet
		}
		return out, err
	}
	s.Say("check")
	f, _, err := CheckOpen(ctx, p, false)
	if err != nil {
		return out, err
	}
	out.Sound, out.Damage = f.Sound, f.Damage
	return out, f.Err()
}

// open opens the pool, or makes one.
func (s *Soak) open() (*stores.Pool, error) {
	if _, err := stores.Lookup(s.Of); err == nil {
		if s.Store != "" {
			return nil, workloads.Usagef("--store %s is for a pool, and %s is a store", s.Store, s.Of)
		}
		p, err := stores.Create("mem:", s.Of, stores.Params{Nodes: soakNodes, Records: soakRecords,
			PairBytes: soakBytes, Workers: s.Workers})
		return as(p, err, s.Of)
	}
	addr, err := Resolve(s.Of)
	if err != nil {
		return nil, err
	}
	p, err := stores.Open(addr)
	if s.Store != "" {
		p, err = as(p, err, s.Store)
	}
	if errors.Is(err, rdma.ErrNoPool) && !strings.Contains(s.Of, ":") {
		return nil, workloads.Usagef("soak %s: there is no store and no pool of this name (hint: %s'farkv list' lists "+
			"the pools)", s.Of, workloads.DidYouMean(s.Of, stores.Names()))
	}
	return p, err
}

// as has a pool that was opened without an error be used as a store, or closes it.
func as(p *stores.Pool, err error, store string) (*stores.Pool, error) {
	if err != nil {
		return nil, err
	}
	if err := p.As(store); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (s *Soak) soaked(p *stores.Pool, r *soak.Result) *Soaked {
	out := &Soaked{
		Pool: p.Address, Store: p.Kind.Name, Workers: s.Workers, Seconds: s.Length.Seconds(), Seed: s.Seed,
		First: r.First, Again: r.Again, FullAt: r.FullAt,
		Heap: r.Heap, Ops: []SoakedOps{},
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	for _, c := range r.Counts {
		out.Ops = append(out.Ops, SoakedOps{c.Kind, c.Ops, us(c.Mean), us(c.P50), us(c.P99), us(c.Worst), c.Full})
	}
	return out
}

// Print implements Result.
func (r *Soaked) Print(w io.Writer) {
	fmt.Fprintf(w, "%s (%s), %s, %v, seed %d\n\n", r.Store, r.Pool, format.Plural(r.Workers, "worker", "workers"),
		time.Duration(r.Seconds*float64(time.Second)), r.Seed)
	rows := [][]string{{"", "operations", "mean", "p50", "p99", "worst", "pool full"}}
	for _, o := range r.Ops {
		rows = append(rows, []string{o.Kind, format.Count(o.Count), format.Latency(o.Mean), format.Latency(o.P50),
			format.Latency(o.P99), format.Latency(o.Worst), format.Count(o.Full)})
	}
	table.Print(w, rows, 0)
	fmt.Fprintf(w, "\nthe pool was full with %s pairs, and after the load with %s\n", format.Count(r.First),
		format.Count(r.Again))
	if r.FullAt > 0 {
		fmt.Fprintf(w, "under load it was full with %.0f %% of the first pairs' bytes, or more\n", 100*r.FullAt)
	}
	if r.Sound {
		fmt.Fprintln(w, "every answer was right, and the pool is sound")
	}
	for _, d := range r.Damage {
		fmt.Fprintln(w, d)
	}
}

var _ Result = (*Soaked)(nil)
