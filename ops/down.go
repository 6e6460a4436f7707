package ops

import (
	"errors"
	"fmt"
	"io"

	"github.com/farkv/farkv/node/fabrics"
)

// Removed is a pool that is no more.
type Removed struct {
	Pool string `json:"removed"`
}

// Down removes a pool. Unless forced it refuses while clients live, with an error wrapping fabrics.ErrInUse.
func Down(addr string, force bool) (*Removed, error) {
	err := fabrics.Remove(addr, force)
	if errors.Is(err, fabrics.ErrInUse) {
		return nil, inUse(addr, err)
	}
	if err != nil {
		return nil, explain(err, addr)
	}
	a, err := fabrics.Parse(addr)
	return &Removed{a.String()}, err
}

// inUse names the clients that keep a pool from being removed.
func inUse(addr string, err error) error {
	who := "clients live"
	if f, e := fabrics.Open(addr); e == nil {
		if live := living(clientsOf(f)); len(live) > 0 {
			who = crowd(live)
		}
		f.Close()
	}
	return fmt.Errorf("%w: %s (hint: end them first, or --force: they lose their pool)", err, who)
}

// Print implements Result.
func (r *Removed) Print(w io.Writer) { fmt.Fprintf(w, "removed %s\n", r.Pool) }
