package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
)

// Findings are what a check found.
type Findings struct {
	Pool    string   `json:"pool"`
	Store   string   `json:"store"`
	Sound   bool     `json:"sound"` // no damage, and all was looked at
	Facts   []Fact   `json:"facts"`
	Waiting []string `json:"waiting"` // what crashes and changes of the view left for recovery; no damage
	Damage  []string `json:"damage"`
	// Unchecked is what could not be read, and why. Damage there is not found.
	Unchecked []string `json:"unchecked"`
	More      int      `json:"more"`    // findings that are not spelt out
	Live      []Client `json:"live"`    // clients that were at work meanwhile: what looks like damage may be their work
	Keepers   []Client `json:"keepers"` // candidates for the pool's master, all of which held still meanwhile

	repair string // a hint
}

// Fact is a number that a check counted. Bytes, where it is set, is that of one replica.
type Fact struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes,omitempty"`

	label string // in the table, where details are indented below their whole
}

// factsOf names each detail after its whole.
func factsOf(uses []stores.Use) []Fact {
	facts, whole := []Fact{}, ""
	for _, u := range uses {
		name := strings.TrimSpace(u.Name)
		if name == u.Name {
			whole = name
		} else {
			name = whole + " " + name
		}
		facts = append(facts, Fact{name, u.Count, u.Bytes, u.Name})
	}
	return facts
}

// ErrDamage is wrapped when a check found damage.
var ErrDamage = errors.New("pool is damaged")

// ErrIncomplete is wrapped when a check found no damage, but could not read all of the pool.
var ErrIncomplete = errors.New("not all of the pool is checked")

// Check walks the whole pool. While clients write, its findings would mean nothing. So it returns
// an error wrapping fabrics.ErrInUse while clients live, unless force is set. Servers of a store
// and candidates for the pool's master do not count: they make no change during the walk. Check
// waits until they do not; when ctx ends meanwhile, the error wraps that of ctx.
func Check(ctx context.Context, addr string, force bool) (*Findings, error) {
	p, err := stores.Open(addr)
	if err != nil {
		return nil, Explain(err, addr)
	}
	defer p.Close()
	f, _, err := CheckOpen(ctx, p, force)
	return f, err
}

// CheckOpen is Check of an open pool. It also returns the live clients that are no candidates for
// the pool's master.
//
// Candidates are known by their name. Another client with that name can make the findings wrong,
// and so can a client that opens the pool after CheckOpen has listed the clients. Neither does
// harm: a check only reads.
func CheckOpen(ctx context.Context, p *stores.Pool, force bool) (f *Findings, users []Client, err error) {
	all, err := clientsOf(p.Fabric)
	if err != nil {
		return nil, nil, ExplainAt(fmt.Errorf("check %s: %w", p.Address, err), p.Address)
	}
	live := living(all)
	keepers := []Client{}
	for _, c := range live {
		if c.Name == stores.KeeperName {
			keepers = append(keepers, c)
		} else {
			users = append(users, c)
		}
	}
	switch {
	case len(users) > 0 && !force:
		return nil, users, fmt.Errorf("check %s: %w: %s (hint: end them first; with --force what they are doing "+
			"may look like damage)", p.Address, fabrics.ErrInUse, crowd(users))
	case len(users) > 0 || len(keepers) == 0: // users need a master meanwhile
		if f, err = FindDamage(p); err == nil {
			f.Live = append(f.Live, live...)
		}
		return f, users, err
	}
	held := heldStill(ctx, p, func() { f, err = FindDamage(p) })
	switch {
	case held == nil && err == nil:
		f.Keepers = keepers
		return f, users, nil
	case held == nil:
		return nil, users, err
	case !force || ctx.Err() != nil:
		return nil, users, ExplainAt(fmt.Errorf("check %s: %w (hint: end %s; with --force what it is doing "+
			"may look like damage)", p.Address, held, crowd(keepers)), p.Address)
	}
	if f, err = FindDamage(p); err == nil {
		f.Live = append(f.Live, live...)
	}
	return f, users, err
}

// heldStill calls walk while this process is the pool's master, which recovers nothing meanwhile.
// An error means that what walk found does not count.
func heldStill(ctx context.Context, p *stores.Pool, walk func()) (err error) {
	ep, err := p.Fabric.Open(cluster.HoldName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	lease := stores.Tenure(p.Fabric)
	stop := func() bool { return ctx.Err() != nil }
	h, err := cluster.Hold(ep, p.Fabric, cluster.Options{Lease: lease, Tick: lease / 12, Stop: stop})
	if errors.Is(err, cluster.ErrStopped) {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	walked, renewed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(renewed)
		tick := time.NewTicker(lease / 4)
		defer tick.Stop()
		for {
			select {
			case <-walked:
				return
			case <-tick.C:
				_ = h.Renew() // End returns what failed for good
			}
		}
	}()
	walk()
	close(walked)
	<-renewed
	if err := h.End(); err != nil {
		return fmt.Errorf("the pool's master did not hold still all the time, so that nothing found counts: %w", err)
	}
	return nil
}

// FindDamage walks a pool whatever other clients do meanwhile.
func FindDamage(p *stores.Pool) (*Findings, error) {
	r, err := p.Kind.Check(p.Fabric)
	if err != nil {
		return nil, ExplainAt(fmt.Errorf("check %s: %w", p.Address, err), p.Address)
	}
	f := &Findings{
		Pool: p.Address, Store: p.Kind.Name, Sound: len(r.Damage) == 0 && len(r.Unchecked) == 0, More: r.More,
		Live:    []Client{},
		Keepers: []Client{}, Facts: factsOf(r.Facts), Waiting: append([]string{}, r.Waiting...),
		Damage: append([]string{}, r.Damage...), Unchecked: append([]string{}, r.Unchecked...),
	}
	switch {
	case len(f.Damage) > 0:
		f.repair = repairOf(p)
	case len(f.Unchecked) > 0:
		f.repair = fmt.Sprintf(" (hint: 'farkv recover %[1]s' gives up nodes that are down; 'farkv status %[1]s' "+
			"shows them)", ShortName(p.Address))
	}
	return f, nil
}

// repairOf returns a hint how to repair damage from another replica: servers that begin with the
// memory of earlier ones compare replicas. "": the store has no such repair.
func repairOf(p *stores.Pool) string {
	if p.Kind.Serve == nil {
		return ""
	}
	if here := StartedHere(p.Address); here != nil && here.Data != "" {
		return fmt.Sprintf(" (hint: 'farkv down %[1]s' and 'farkv up --fabric tcp %[1]s --pmem %[2]s': servers that "+
			"begin compare replicas, and copy what is damaged from others)", here.Name, here.Data)
	}
	all, err := ServedBy(p.Address, p.Fabric)
	if err != nil || len(all) == 0 || slices.ContainsFunc(all, func(s Served) bool { return s.Survives == "" }) {
		return ""
	}
	return " (hint: end the process of the node that is named, and start it again with the same --pmem: its server " +
		"compares replicas then, and copies what is damaged from others)"
}

// Err returns an error wrapping ErrDamage when there is damage, or ErrIncomplete when there may be.
func (f *Findings) Err() error {
	switch {
	case len(f.Damage) > 0:
		return fmt.Errorf("check %s: %w: %s%s", f.Pool, ErrDamage,
			format.Plural(len(f.Damage)+f.More, "finding", "findings"), f.repair)
	case len(f.Unchecked) > 0:
		return fmt.Errorf("check %s: %w: %s left out%s", f.Pool, ErrIncomplete,
			format.Plural(len(f.Unchecked), "server is", "servers are"), f.repair)
	}
	return nil
}

// Print implements Result.
func (f *Findings) Print(w io.Writer) {
	rows := [][]string{{f.Pool + ": " + f.Store, "number", "bytes of one replica"}}
	for _, u := range f.Facts {
		bytes := ""
		if u.Bytes > 0 {
			bytes = format.Size(u.Bytes)
		}
		rows = append(rows, []string{u.label, format.Count(u.Count), bytes})
	}
	table.Print(w, rows)
	fmt.Fprintln(w)
	for _, s := range f.Waiting {
		fmt.Fprintf(w, "waits for recovery: %s\n", s)
	}
	for _, s := range f.Damage {
		fmt.Fprintf(w, "DAMAGE: %s\n", s)
	}
	for _, s := range f.Unchecked {
		fmt.Fprintf(w, "NOT CHECKED: %s\n", s)
	}
	if f.More > 0 {
		fmt.Fprintf(w, "and %s\n", format.Plural(f.More, "finding more", "findings more"))
	}
	if len(f.Live) > 0 {
		fmt.Fprintf(w, "clients were at work, so that findings may be of the moment: %s\n", crowd(f.Live))
	}
	if n := len(f.Keepers); n > 0 {
		fmt.Fprintf(w, "%s lived, and held still meanwhile\n",
			format.Plural(n, "candidate for the pool's master", "candidates for the pool's master"))
	}
	switch {
	case len(f.Damage) > 0:
		fmt.Fprintln(w, "the pool is DAMAGED")
	case len(f.Unchecked) > 0:
		fmt.Fprintln(w, "no damage in what was checked, which is NOT ALL")
	case len(f.Waiting) > 0:
		fmt.Fprintln(w, "no damage; what waits is left to the next recovery")
	default:
		fmt.Fprintln(w, "no damage")
	}
}
