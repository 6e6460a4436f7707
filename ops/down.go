package ops

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
)

// Removed is a pool that was removed.
type Removed struct {
	Pool    string `json:"removed"`
	Stopped int    `json:"stopped_nodes,omitempty"` // processes of this machine that 'farkv up' had started
	Left    bool   `json:"nodes_left,omitempty"`    // its nodes go on, and belong to no pool
	Kept    string `json:"kept,omitempty"`          // the folder that brings it back: see Starter.PMem
}

// Down removes a pool. Unless force is set, it returns an error wrapping fabrics.ErrInUse while
// clients live. Given the name of a pool that UpStarted made, it also ends the nodes; given the
// address, the nodes stay. The files of such nodes stay in their folder, and UpStarted brings the
// pool back from them, unless purge is set.
func Down(addr string, force, purge bool) (*Removed, error) {
	if !strings.Contains(addr, ":") {
		switch p, err := local.Open(addr); {
		case err == nil:
			return downStarted(p, force, purge)
		case !errors.Is(err, local.ErrNoPool) && !errors.Is(err, local.ErrName):
			return nil, explainStarted(err, addr)
		}
	}
	if purge {
		return nil, workloads.Usagef("down %s: --purge is for a NAME whose nodes 'farkv up --pmem' started, and that "+
			"is up (hint: of one that is down, remove the folder)", addr)
	}
	err := fabrics.Remove(addr, force)
	if errors.Is(err, fabrics.ErrInUse) {
		return nil, inUse(addr, err)
	}
	if !force && errors.Is(err, rdma.ErrMinority) {
		return nil, fmt.Errorf("%w (hint: 'farkv status %s' shows the nodes; --force removes it nevertheless)",
			err, addr)
	}
	if !force && errors.Is(err, rdma.ErrUnreachable) && !strings.HasPrefix(addr, "consul:") {
		return nil, fmt.Errorf("%w (hint: 'farkv recover %s' gives up nodes that are down; or --force)", err, addr)
	}
	if errors.Is(err, rdma.ErrNodeDown) {
		return nil, fmt.Errorf("%w (hint: nodes that answer have let go of it, and one that is started anew belongs "+
			"to no pool; 'farkv status %s' shows them)", err, addr)
	}
	if err != nil {
		return nil, Explain(err, addr)
	}
	a, err := fabrics.Parse(addr)
	return &Removed{Pool: a.String(), Left: a.Remote()}, err
}

// inUse names the clients that keep a pool from being removed.
func inUse(addr string, err error) error {
	use := "clients live"
	if f, e := fabrics.Open(addr); e == nil {
		if all, err := clientsOf(f); err == nil && len(living(all)) > 0 {
			use = crowd(living(all))
		}
		f.Close()
	}
	return fmt.Errorf("%w: %s (hint: end them first, or --force: they lose their pool)", err, use)
}

// Print implements Result.
func (r *Removed) Print(w io.Writer) {
	did := "removed"
	if r.Kept != "" {
		did = "ended"
	}
	fmt.Fprintf(w, "%s %s", did, r.Pool)
	switch {
	case r.Stopped > 0:
		fmt.Fprintf(w, ", and stopped its %s", format.Plural(r.Stopped, "node", "nodes"))
	case r.Left:
		fmt.Fprint(w, "; its nodes go on, and belong to no pool")
	}
	if r.Kept != "" {
		fmt.Fprintf(w, "; %s keeps what they remember: 'farkv up --fabric tcp %s --pmem %s' brings it back",
			r.Kept, r.Pool, r.Kept)
	}
	fmt.Fprintln(w)
}
