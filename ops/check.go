package ops

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops/table"
)

// Findings are what a check found.
type Findings struct {
	Pool    string   `json:"pool"`
	Store   string   `json:"store"`
	Sound   bool     `json:"sound"` // no damage
	Facts   []Fact   `json:"facts"`
	Waiting []string `json:"waiting"` // what dead clients left for recovery; no damage
	Damage  []string `json:"damage"`
	More    int      `json:"more"` // findings that are not spelt out
	Live    []Client `json:"live"` // clients that were at work meanwhile: what looks like damage may be their work
}

// Fact is what a check counted; its Bytes, where they mean something, are those of one replica.
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

// Check walks the whole pool. Of one that clients write to meanwhile it would tell nothing that holds, so it refuses
// while clients live, unless forced, with an error wrapping fabrics.ErrInUse.
func Check(addr string, force bool) (*Findings, error) {
	p, err := stores.Open(addr)
	if err != nil {
		return nil, explain(err, addr)
	}
	defer p.Close()
	all, err := clientsOf(p.Fabric)
	if err != nil {
		return nil, explain(fmt.Errorf("check %s: %w", p.Address, err), addr)
	}
	live := living(all)
	if len(live) > 0 && !force {
		return nil, fmt.Errorf("check %s: %w: %s (hint: end them first; with --force what they are doing may look like damage)",
			p.Address, fabrics.ErrInUse, crowd(live))
	}
	f, err := findings(p)
	if err != nil {
		return nil, err
	}
	f.Live = append(f.Live, live...)
	return f, nil
}

func findings(p *stores.Pool) (*Findings, error) {
	r, err := p.Kind.Check(p.Fabric)
	if err != nil {
		return nil, explainAt(fmt.Errorf("check %s: %w", p.Address, err), p.Address)
	}
	f := &Findings{
		Pool: p.Address, Store: p.Kind.Name, Sound: len(r.Damage) == 0, More: r.More, Live: []Client{},
		Facts:   factsOf(r.Facts),
		Waiting: append([]string{}, r.Waiting...), Damage: append([]string{}, r.Damage...),
	}
	return f, nil
}

// Err returns an error wrapping ErrDamage when there is damage.
func (f *Findings) Err() error {
	if f.Sound {
		return nil
	}
	return fmt.Errorf("check %s: %w: %s", f.Pool, ErrDamage, plural(len(f.Damage)+f.More, "finding", "findings"))
}

// Print implements Result.
func (f *Findings) Print(w io.Writer) {
	rows := [][]string{{f.Pool + ": " + f.Store, "number", "bytes of one replica"}}
	for _, u := range f.Facts {
		bytes := ""
		if u.Bytes > 0 {
			bytes = size(u.Bytes)
		}
		rows = append(rows, []string{u.label, count(u.Count), bytes})
	}
	table.Print(w, rows)
	fmt.Fprintln(w)
	for _, s := range f.Waiting {
		fmt.Fprintf(w, "waits for recovery: %s\n", s)
	}
	for _, s := range f.Damage {
		fmt.Fprintf(w, "DAMAGE: %s\n", s)
	}
	if f.More > 0 {
		fmt.Fprintf(w, "and %s\n", plural(f.More, "finding more", "findings more"))
	}
	if len(f.Live) > 0 {
		fmt.Fprintf(w, "clients were at work, so that findings may be of the moment: %s\n", crowd(f.Live))
	}
	switch {
	case !f.Sound:
		fmt.Fprintln(w, "the pool is DAMAGED")
	case len(f.Waiting) > 0:
		fmt.Fprintln(w, "no damage; what dead clients left waits for recovery")
	default:
		fmt.Fprintln(w, "no damage")
	}
}
