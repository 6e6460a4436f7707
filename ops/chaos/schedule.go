package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/workloads"
)

// Schedule says what to break, one thing at a time. The pool is whole again between two.
type Schedule struct {
	Plan  []Planned   // in order; nil: as the others say
	Kinds []BreakKind // to draw from
	Every time.Duration
	For   time.Duration // no break begins behind it
	Seed  uint64        // of what is drawn, with the pool's state
	Fault time.Duration // how long what is for a time lasts, where the Plan does not say; default DefaultFault
	Slow  time.Duration // default DefaultSlow
	Force bool          // break what costs data, or the pool, too
	// Patience bounds the wait for a whole pool; default DefaultPatience.
	Patience time.Duration
	Progress func(line string)     // nil: nothing is told
	Note     func(telemetry.Event) // see Breaker
}

// DefaultPatience is for how long a pool may not be whole before a schedule ends.
const DefaultPatience = time.Minute

// Breaks is what a schedule did.
type Breaks struct {
	Pool    string   `json:"pool"`
	Seed    uint64   `json:"seed"`
	Breaks  []Outage `json:"breaks"`
	Whole   bool     `json:"whole"`             // in the end
	Check   string   `json:"check"`             // what it found in the end
	Sound   *bool    `json:"sound"`             // nil: not known
	Ended   string   `json:"ended,omitempty"`   // early: why
	Problem string   `json:"problem,omitempty"` // pairs of the probe that were not removed
}

// Outage is a break, and what the probe load met with from it until the pool was whole.
type Outage struct {
	Begun   float64  `json:"begun_seconds"` // since the schedule did
	Planned string   `json:"planned,omitempty"`
	Broken  *Broken  `json:"broken,omitempty"`
	Refused string   `json:"refused,omitempty"`   // nothing was broken: why
	Whole   *float64 `json:"until_whole_seconds"` // nil: it was not
	Probed
	GapSeconds float64 `json:"longest_gap_seconds"`
}

// RunSchedule breaks things of a pool. At the end of ctx it mends what it broke for a time, and
// returns what it did so far beside an error that wraps that of ctx.
func RunSchedule(ctx context.Context, addr string, s Schedule) (result *Breaks, err error) {
	s.Patience = cmp.Or(s.Patience, DefaultPatience)
	b, err := NewBreaker(addr)
	if err != nil {
		return nil, err
	}
	b.Force, b.Note = s.Force, s.Note
	r := &scheduled{Schedule: s, b: b, out: &Breaks{Pool: b.Pool(), Seed: s.Seed, Breaks: []Outage{}, Check: "not run"}}
	if err := r.ready(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if r.p, err = startProbe(b.Pool()); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	r.began = time.Now()
	err = r.run(ctx)
	mended := b.mendAll()
	if left := r.p.stop(); left != nil {
		r.out.Problem = left.Error()
	}
	if r.out.Whole && ctx.Err() == nil {
		r.check(ctx)
	}
	err = errors.Join(err, mended, b.Close())
	if err == nil && r.out.Sound != nil && !*r.out.Sound {
		err = fmt.Errorf("crash %s: %w: %s", b.Pool(), ops.ErrDamage, r.out.Check)
	}
	return r.out, err
}

// scheduled is a schedule that runs.
type scheduled struct {
	Schedule
	b     *Breaker
	p     *probe
	out   *Breaks
	began time.Time
}

func (r *scheduled) say(format string, args ...any) {
	if r.Progress != nil {
		r.Progress(fmt.Sprintf(format, args...))
	}
}

// ready wants a pool that is kept by another program, and whole.
func (r *scheduled) ready(ctx context.Context) error {
	_, err := r.b.UntilWhole(ctx, &Broken{}, 3*stores.Tenure(r.b.pool.Fabric)+wholeFor, nil, nil)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if ops.MasterOf(r.b.pool.Fabric) == nil && r.b.pool.Kind.Recoverer != nil {
		return fmt.Errorf("crash %s: no program keeps it: nothing would mend what is broken (hint: run a load, or "+
			"'farkv keep %s')", r.b.Pool(), r.b.name())
	}
	return fmt.Errorf("crash: %w (hint: 'farkv recover %s')", err, r.b.name())
}

// run breaks one thing after another.
func (r *scheduled) run(ctx context.Context) error {
	r.out.Whole = true
	last := r.began
	for turn := 0; ; turn++ {
		after, ok := r.next(turn)
		if !ok {
			break
		}
		if err := ops.SleepUntil(ctx, last.Add(after)); err != nil {
			return err
		}
		last = time.Now()
		o, err := r.turn(ctx, turn)
		if o != nil {
			o.GapSeconds = o.Gap.Seconds()
			r.out.Breaks = append(r.out.Breaks, *o)
		}
		if errors.Is(err, errNothing) && turn > 0 {
			r.out.Ended = err.Error()
			return nil
		}
		if err != nil {
			return err
		}
	}
	return r.refused()
}

// refused is an error when a plan says what may not be broken.
func (r *scheduled) refused() error {
	var why []string
	for _, o := range r.out.Breaks {
		if o.Broken == nil {
			why = append(why, o.Refused)
		}
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("crash %s: %d of %d breaks of the plan were refused: %s", r.b.Pool(), len(why),
		len(r.Plan), why[0])
}

// next returns how long behind the last one a turn begins; false: there is none.
func (r *scheduled) next(turn int) (time.Duration, bool) {
	if r.Plan != nil {
		if turn == len(r.Plan) {
			return 0, false
		}
		return r.Plan[turn].After, true
	}
	return r.Every, time.Since(r.began)+r.Every <= r.For
}

// errNothing is wrapped when there is nothing left that may be broken.
var errNothing = errors.New("nothing may be broken any more")

// turn breaks one thing and waits until the pool is whole.
func (r *scheduled) turn(ctx context.Context, turn int) (*Outage, error) {
	o := &Outage{Begun: time.Since(r.began).Seconds()}
	what, err := r.choose(ctx, turn)
	if r.Plan != nil {
		o.Planned = r.Plan[turn].String()
	}
	var done *Broken
	if err == nil {
		r.p.begin()
		done, err = r.b.Break(ctx, *what)
	}
	switch {
	case err != nil && (r.Plan == nil || ctx.Err() != nil):
		return nil, err
	case err != nil:
		o.Refused = err.Error()
		r.say("not broken: %v", err)
		return o, nil
	}
	o.Broken = done
	r.say("%s", done.Text)
	r.out.Whole = false
	end := done.At.Add(done.For)
	also := func() string {
		if !r.p.answered(end) {
			return "an answer to the probe load"
		}
		return ""
	}
	whole, err := r.b.UntilWhole(ctx, done, r.Patience, also, func(waits string) { r.say("waits for %s", waits) })
	o.Probed = r.p.so()
	if err != nil {
		if mended := done.Mend(); mended != nil {
			err = errors.Join(err, mended)
		}
		return o, err
	}
	if err := done.Mend(); err != nil { // what its end said
		return o, err
	}
	took := whole.Sub(done.At).Seconds()
	o.Whole, r.out.Whole = &took, true
	r.say("whole after %v: %d of %d operations of the probe failed, longest gap %v", rounded(took), o.Failed,
		o.Operations, o.Gap.Round(time.Millisecond))
	return o, nil
}

// rounded is a number of seconds as people read it.
func rounded(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}

// choose returns what a turn breaks.
func (r *scheduled) choose(ctx context.Context, turn int) (*Break, error) {
	draw := rand.New(rand.NewPCG(r.Seed, uint64(turn)))
	kinds, one := r.Kinds, Break{For: r.Fault, Slow: r.Slow}
	if r.Plan != nil {
		p := r.Plan[turn]
		if !p.Any {
			one = p.Break
			return &one, nil
		}
		kinds = []BreakKind{p.Kind}
		if p.For > 0 {
			one.For = p.For
		}
		if p.Slow > 0 {
			one.Slow = p.Slow
		}
	}
	possible, why := map[BreakKind][]Target{}, error(nil)
	var have []BreakKind
	var master *ops.Master
	if slices.Contains(kinds, BreakMaster) {
		master = r.b.awaitMaster(ctx)
	}
	for _, k := range kinds {
		targets, err := r.b.Targets(k, master)
		if len(targets) > 0 {
			possible[k] = targets
			have = append(have, k)
		} else if why == nil {
			why = err
		}
	}
	if len(have) == 0 {
		return nil, fmt.Errorf("%w: %w", errNothing, why)
	}
	one.Kind = have[draw.IntN(len(have))]
	one.Target = possible[one.Kind][draw.IntN(len(possible[one.Kind]))]
	if one.Kind == BreakNode || one.Kind == BreakClient || one.Kind == BreakMaster {
		one.For = 0
	}
	if one.Kind != BreakSlow {
		one.Slow = 0
	}
	return &one, nil
}

// Targets returns what a kind of break may be about now, in an order that follows from the pool's
// state alone, without what costs data unless forced; and where there is nothing, why. master
// is the pool's; nil: there is none.
func (b *Breaker) Targets(kind BreakKind, master *ops.Master) (all []Target, why error) {
	note := func(err error) {
		if why == nil {
			why = err
		}
	}
	if kind == BreakNode || kind == BreakStop || kind == BreakSlow || kind == BreakCut {
		nodes, _ := ops.NodesOf(b.pool.Fabric)
		for n, is := range nodes {
			w := &Break{Kind: kind, Target: Target{Nodes: []int{n}}}
			switch err := b.able(w); {
			case err != nil:
				note(err)
			case is.Up:
				if err := b.mayLose(w); err != nil {
					note(err)
				} else {
					all = append(all, w.Target)
				}
			}
		}
	}
	if kind == BreakClient || kind == BreakMaster || kind == BreakStop {
		targets, err := b.processes(kind, master)
		if err != nil {
			note(err)
		}
		all = append(all, targets...)
	}
	if len(all) == 0 && why == nil {
		why = fmt.Errorf("%s: there is none", kind)
	}
	return all, why
}

// processes returns one client of each process of this machine that may be broken. One that is
// killed leaves another candidate for the pool's master: else nothing would mend the pool.
func (b *Breaker) processes(kind BreakKind, master *ops.Master) (all []Target, why error) {
	if _, kills := b.pool.Fabric.(rdma.ClientCrasher); !kills && !hereOnly(b.pool.Address) {
		return nil, workloads.Usagef("%s: the clients of %s may be processes of any machine", kind, b.Pool())
	}
	of := map[int]int{}       // process -> its first client
	keepers := map[int]bool{} // processes that are candidates
	var pids []int
	for _, c := range b.pool.Fabric.Clients() {
		if !c.Alive || c.PID == os.Getpid() || c.PID <= 1 || stores.OfServer(c.Name) { // which are their nodes'
			continue
		}
		if _, ok := of[c.PID]; !ok {
			of[c.PID] = int(c.ID)
			pids = append(pids, c.PID)
		}
		keepers[c.PID] = keepers[c.PID] || c.Name == stores.KeeperName
	}
	candidates := 0
	for _, is := range keepers {
		if is {
			candidates++
		}
	}
	for _, pid := range pids {
		switch {
		case kind == BreakMaster && (master == nil || master.PID != pid):
		case kind != BreakStop && b.pool.Kind.Recoverer != nil && keepers[pid] && candidates < 2:
			why = fmt.Errorf("%s: process %d is the only candidate for the pool's master (hint: 'farkv keep %s' "+
				"is another)", kind, pid, b.name())
		case kind == BreakMaster:
			all = append(all, Target{Master: true})
		default:
			all = append(all, Target{Client: of[pid]})
		}
	}
	slices.SortFunc(all, func(a, b Target) int { return a.Client - b.Client })
	if len(all) == 0 && why == nil {
		why = fmt.Errorf("%s: no other program uses the pool", kind)
	}
	return all, why
}

// mendAll ends what was broken for a time.
func (b *Breaker) mendAll() (err error) {
	for _, one := range b.broken {
		err = errors.Join(err, one.Mend())
	}
	b.broken = nil
	return err
}

// check walks the pool in the end. What clients do meanwhile may look like damage; keepers hold
// still.
func (r *scheduled) check(ctx context.Context) {
	r.b.events.Wait()
	f, users, err := ops.CheckOpen(ctx, r.b.pool, true)
	busy := len(users)
	if busy == 0 && f != nil {
		busy = len(f.Live) // keepers that did not hold still
	}
	sound := err == nil && f.Sound
	switch {
	case err != nil:
		r.out.Check = err.Error()
	case sound && busy == 0:
		r.out.Check, r.out.Sound = "no damage", &sound
	case sound:
		r.out.Check, r.out.Sound = fmt.Sprintf("no damage, while %s were at work",
			format.Plural(busy, "client", "clients")), &sound
	case busy > 0:
		r.out.Check = fmt.Sprintf("not known: %s were at work, which may look like damage (hint: end them, then "+
			"'farkv check %s')", format.Plural(busy, "client", "clients"), r.b.name())
	case len(f.Damage) == 0:
		r.out.Check = "not known: " + strings.Join(f.Unchecked, "; ")
	default:
		r.out.Check, r.out.Sound = format.Plural(len(f.Damage)+f.More, "finding", "findings"), &sound
	}
}

// Print implements Result.
func (r *Breaks) Print(w io.Writer) {
	rows := [][]string{{"broken", "after", "until whole", "operations", "failed", "longest gap"}}
	var notes []string
	for _, o := range r.Breaks {
		at := rounded(o.Begun).Round(100 * time.Millisecond).String()
		if o.Broken == nil {
			rows = append(rows, []string{"nothing: " + o.Planned, at})
			notes = append(notes, o.Refused)
			continue
		}
		whole := "not yet"
		if o.Whole != nil {
			whole = rounded(*o.Whole).String()
		}
		rows = append(rows, []string{o.Broken.Text, at, whole, format.Count(o.Operations), format.Count(o.Failed),
			o.Gap.Round(time.Millisecond).String()})
		if o.LostPairs > 0 {
			notes = append(notes, fmt.Sprintf("%s: the probe did not find %s that it had written", o.Broken.Text,
				format.Plural(o.LostPairs, "pair", "pairs")))
		}
	}
	if len(r.Breaks) > 0 {
		table.Print(w, rows)
	}
	for _, n := range notes {
		fmt.Fprintf(w, "%s\n", n)
	}
	if r.Ended != "" {
		fmt.Fprintf(w, "ended early: %s\n", r.Ended)
	}
	if !r.Whole {
		fmt.Fprintf(w, "%s is NOT whole\n", r.Pool)
	}
	if r.Problem != "" {
		fmt.Fprintln(w, r.Problem)
	}
	fmt.Fprintf(w, "seed %d; check: %s\n", r.Seed, r.Check)
}
