package virtual

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/check/explore"
)

// Fuzz explores a store in virtual time: small random pools, networks, workloads and faults.
type Fuzz struct {
	Store  string
	Seed   uint64 // the first
	Runs   uint64 // one a seed, and some more in which keepers crash
	Limits explore.Limits
	Own    stores.Values // options of the store
	Plan   string        // replay this instead
	Trace  bool          // replay it all when nothing is wrong, too: of Plan, or of the first seed alone
	Search time.Duration // for an order of a run's answers, in wall time; 0: explore.DefaultSearch
	// Say is told of the progress.
	Say func(format string, args ...any)
}

// Fuzzed is what was found.
type Fuzzed struct {
	Store      string `json:"store"`
	Seed       uint64 `json:"seed"`  // the first
	Seeds      uint64 `json:"seeds"` // that were tried
	Runs       uint64 `json:"runs"`  // one each, and one more of those in which a keeper crashed
	Operations uint64 `json:"operations"`
	OK         uint64 `json:"ok"` // operations that did what they were asked for
	Events     uint64 `json:"events"`
	Crashes    uint64 `json:"crashes"`     // of clients and keepers
	Deaths     uint64 `json:"node_deaths"` // of memory nodes
	Restarts   uint64 `json:"restarts"`    // of memory nodes that came back
	Undecided  uint64 `json:"undecided"`   // runs for which no order of the answers was found in time
	// UndecidedPlan is that of the first of them.
	UndecidedPlan string `json:"undecided_plan,omitempty"`
	Recovers      bool   `json:"recovers"` // the store has a recovery, which took part

	Failed  *uint64 `json:"failed_seed"` // the lowest; null: none
	Guilt   string  `json:"guilt,omitempty"`
	Failure string  `json:"failure,omitempty"`
	Drawn   string  `json:"drawn_plan,omitempty"` // of the seed
	Plan    string  `json:"plan,omitempty"`       // the smallest that fails by the same guilt
	Replay  string  `json:"replay,omitempty"`

	took      time.Duration
	command   string // the store, and its options, as they are said behind 'farkv sim fuzz'
	available bool   // no client waits for the dead
}

// ErrGuilty is wrapped when a run went wrong.
var ErrGuilty = errors.New("a run went wrong")

// ErrUndecided is wrapped when no run went wrong, and some could not be judged.
var ErrUndecided = errors.New("not all runs could be judged")

// Run explores. When a run goes wrong the error wraps ErrGuilty; when ctx ends it early, ctx's;
// when a run could not be judged, ErrUndecided. The answer holds what was found.
func (z *Fuzz) Run(ctx context.Context) (*Fuzzed, error) {
	kind, err := stores.Lookup(z.Store)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	if err := kind.Heeds(z.Own); err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	s := subject(kind, z.Own)
	s.Search = z.Search
	f := &Fuzzed{Store: z.Store, command: strings.Join(append([]string{z.Store}, kind.Flags(z.Own)...), " "),
		Seed: z.Seed, Recovers: s.Recoverer != nil, available: s.Majority}
	if z.Plan != "" {
		return z.one(s, f)
	}
	began := time.Now()
	r := s.Fuzz(ctx, explore.Search{First: z.Seed, Runs: z.Runs, Limits: z.Limits, Progress: func(t explore.Stats) {
		z.say("%s runs, %s operations, %s events",
			format.Count(t.Runs), format.Count(t.Operations), format.Count(t.Events))
	}})
	f.took = time.Since(began)
	f.Seeds, f.Runs, f.Operations, f.OK, f.Events = r.Seeds, r.Runs, r.Operations, r.OK, r.Events
	f.Crashes, f.Deaths, f.Restarts, f.Undecided = r.Crashes, r.Deaths, r.Restarts, r.Undecided
	if r.UndecidedPlan != nil {
		f.UndecidedPlan = r.UndecidedPlan.String()
	}
	switch {
	case r.Failure != nil:
		z.say("seed %d fails: looking for a smaller plan", r.Seed)
		f.Failed, f.Drawn = &r.Seed, r.Plan.String()
		p, failure := s.Shrink(r.Plan, r.Failure)
		return f, f.blame(s, p, failure)
	case ctx.Err() != nil:
		return f, fmt.Errorf("explore %s: %w", z.Store, ctx.Err())
	case z.Trace:
		f.Replay = replay(s, s.Draw(z.Seed, z.Limits))
	}
	return f, f.undecided()
}

func (z *Fuzz) say(format string, args ...any) {
	if z.Say != nil {
		z.Say(format, args...)
	}
}

// one replays a plan.
func (z *Fuzz) one(s *explore.Subject, f *Fuzzed) (*Fuzzed, error) {
	p, err := explore.Parse(z.Plan)
	if err != nil {
		return nil, workloads.Usagef("--plan: %v", err)
	}
	f.Seed, f.Plan = p.Seed, p.String()
	stats, failure := s.Try(p)
	if f.Undecided = stats.Undecided; f.Undecided > 0 {
		f.UndecidedPlan = f.Plan
	}
	if failure != nil {
		f.Failed, f.Drawn = &p.Seed, f.Plan
		return f, f.blame(s, p, failure)
	}
	if z.Trace {
		f.Replay = replay(s, p)
	}
	return f, f.undecided()
}

// undecided returns the error of runs that could not be judged; nil when there are none.
func (f *Fuzzed) undecided() error {
	if f.Undecided == 0 {
		return nil
	}
	return fmt.Errorf("explore %s: %w: no order of the answers of %s was found in time", f.Store, ErrUndecided,
		format.Plural(int(f.Undecided), "run", "runs"))
}

func (f *Fuzzed) blame(s *explore.Subject, p *explore.Plan, failure *explore.Failure) error {
	f.Plan, f.Guilt, f.Failure, f.Replay = p.String(), string(failure.Guilt), failure.Err.Error(), replay(s, p)
	return fmt.Errorf("explore %s: %w: seed %d: %s", f.Store, ErrGuilty, *f.Failed, failure.Guilt)
}

func replay(s *explore.Subject, p *explore.Plan) string {
	var b bytes.Buffer
	s.Replay(p, &b) // a Buffer takes everything
	return b.String()
}

// Print implements Result.
func (f *Fuzzed) Print(w io.Writer) {
	if f.Replay != "" {
		fmt.Fprintln(w, strings.TrimRight(f.Replay, "\n"))
	}
	if f.Runs > 0 {
		fmt.Fprintf(w, "%s: %s of %s from %d on, %s (%s ok), %s events; %s and %s died%s\n", f.Store,
			format.Plural(int(f.Runs), "run", "runs"), format.Plural(int(f.Seeds), "seed", "seeds"), f.Seed,
			format.Plural(int(f.Operations), "operation", "operations"), format.Count(f.OK), format.Count(f.Events),
			format.Plural(int(f.Crashes), "client", "clients"),
			format.Plural(int(f.Deaths), "memory node", "memory nodes"), cameBack(f.Restarts))
	}
	if !f.Recovers && !f.available {
		fmt.Fprintf(w, "nothing recovers a pool of %s: what depended on the dead could end without an answer\n",
			f.Store)
	}
	if f.Undecided > 0 {
		fmt.Fprintf(w, "%s could not be judged: the search for an order of the answers took too long; the first, "+
			"with more time:\n"+
			"farkv sim fuzz %s --search-time 10m --plan '%s'\n",
			format.Plural(int(f.Undecided), "run", "runs"), f.command, f.UndecidedPlan)
	}
	if f.Failed == nil {
		switch {
		case f.Undecided == 0:
			fmt.Fprintln(w, "nothing is wrong")
		case f.Undecided < f.Runs:
			fmt.Fprintln(w, "nothing is wrong in what was judged")
		default: // of a plan that is replayed no runs are counted
			fmt.Fprintln(w, "nothing was judged")
		}
		return
	}
	if f.Plan != f.Drawn {
		fmt.Fprintf(w, "seed %d failed, with the plan\n  %s\n", *f.Failed, f.Drawn)
	}
	fmt.Fprintf(w, "%s: %s\nreplay it: farkv sim fuzz %s --plan '%s'\n", f.Guilt, f.Failure, f.command, f.Plan)
}

// cameBack says how many nodes did, if any.
func cameBack(n uint64) string {
	if n == 0 {
		return ""
	}
	return ", " + format.Plural(int(n), "came", "came") + " back"
}

// The pools that are explored: made and checked at once, and large enough for what plans do. Little
// memory makes small blocks, which are handed on all the time.
const (
	exploredMemory  = 1 << 20 // of a node
	exploredPairs   = 16
	exploredPair    = 64
	exploredKey     = 20
	exploredValue   = 300 // few size classes: there are not many blocks
	exploredClients = 24
	exploredTimeout = 20 * time.Millisecond
	exploredLevels  = 8 // as many as tell the keys of plans apart
	// Few pools have as many replicas as a store may have, or are made for its largest pairs. Those
	// of more than 32 KiB differ from others in their length alone.
	exploredWide  = 7
	exploredLarge = 32 << 10
	exploredMost  = 48 << 20 // bytes of a node of such a pool
)

// subject is a store of the table as the explorer sees it. Options that are set count more than
// what it chooses.
func subject(k *stores.Kind, own stores.Values) *explore.Subject {
	pair := exploredPair
	if k.Slots {
		pair = exploredKey + exploredValue
	}
	levels, timeout := 0, exploredTimeout
	if k.Grows() {
		levels = exploredLevels
	}
	if k.Grows() || k.Contends {
		timeout = 3 * exploredTimeout
	}
	params := func(s explore.Shape) stores.Params {
		var cramped stores.Values
		if s.Levels > 0 {
			cramped = k.Cramped(s.Levels)
		}
		bytes, memory := pair, uint64(exploredMemory)
		if s.Value > 0 {
			bytes = exploredKey + s.Value
		}
		if s.Value > 0 || max(s.Index, s.Data) == exploredWide {
			memory = 0 // from the rest
		}
		return k.Size(stores.Params{Nodes: s.Nodes, Spares: s.Spares, IndexReplicas: s.Index, DataReplicas: s.Data,
			Records: exploredPairs, PairBytes: bytes, Memory: memory, Clients: exploredClients,
			Timeout: timeout, Own: cramped.With(k.Choose(k.Explored.With(own), stores.Made))})
	}
	shapes := shapesOf(k, params)
	s := &explore.Subject{
		Name: k.Name, Levels: levels, Handler: node.Serve, Clients: exploredClients + shapes.servers,
		Servers: shapes.servers, Timeout: timeout, MaxValue: exploredValue, Wide: shapes.wide, Large: shapes.large,
		Replicas: shapes.replicas, Majority: k.Majority, Durable: k.Durable, Scans: k.Scans,
		NoSpares: !spared(k, params, 2), Lone: !spared(k, params, 1),
		Memory: func(s explore.Shape) (uint64, error) {
			p := params(s)
			return p.Memory, p.Check(k)
		},
		Format: func(f rdma.Fabric, s explore.Shape) error { return k.Format(f, params(s)) },
		OpenOn: func(f rdma.Fabric, ep rdma.Endpoint, cache bool) (client.Store, error) {
			o := stores.Options{Own: k.Explored.With(k.Choose(own, stores.Opened)), Fabric: f}
			if !cache {
				o = k.Uncached(o)
			}
			return k.Open(ep, o)
		},
		Check:     k.Check,
		Recoverer: k.Recoverer,
	}
	if k.ExploredRecoverer != nil {
		s.Recoverer = k.ExploredRecoverer
	}
	if k.Serve != nil {
		s.Serve = func(f rdma.Fabric) (explore.Servers, error) { return k.Start(f) }
	}
	return s
}

// shapes are the pools of a store that are explored: see explore.Subject.
type shapes struct {
	replicas             [][2]int
	servers, wide, large int
}

// shapesOf tries which pools a store takes. Few of those that are explored are wide or large, and
// none takes more than exploredMost.
func shapesOf(k *stores.Kind, params func(explore.Shape) stores.Params) (s shapes) {
	takes := func(replicas, value int) bool {
		p := params(explore.Shape{Nodes: replicas + 1, Index: replicas, Data: replicas, Value: value})
		return p.Check(k) == nil && p.Memory <= exploredMost
	}
	s.wide, s.large = exploredWide, min(k.MaxPair, exploredLarge)-exploredKey
	if !takes(s.wide, 0) {
		s.wide = 0
	}
	for s.large > exploredValue && !takes(max(s.wide, 1), s.large) {
		s.large /= 2
	}
	if s.large <= exploredValue {
		s.large = 0
	}
	for _, r := range [][2]int{{1, 1}, {2, 2}, {1, 2}, {3, 3}, {3, 2}, {5, 5}, {5, 3}, {s.wide, s.wide}} {
		p := params(explore.Shape{Nodes: max(r[0], r[1]), Index: r[0], Data: r[1]})
		if r[0] == 0 || p.Check(k) != nil {
			continue
		}
		if r[0] < exploredWide {
			s.replicas = append(s.replicas, r)
		}
		// as many as there are, unless some are spares
		one := params(explore.Shape{Nodes: max(r[0], r[1]) + 1, Index: r[0], Data: r[1]})
		s.servers = max(s.servers, one.Servers)
	}
	return s
}

// spared reports whether a store's pools with so many replicas may have spares.
func spared(k *stores.Kind, params func(explore.Shape) stores.Params, replicas int) bool {
	p := params(explore.Shape{Nodes: replicas + 1, Spares: 1, Index: replicas, Data: replicas})
	return p.Check(k) == nil
}
