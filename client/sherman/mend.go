package sherman

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Mender is what a pool's master uses: it brings the transaction of a dead client to its end and gives back what the
// client had, so that its identity can be used again. No client waits for that: each repairs what it meets. Nothing takes
// a dead node's place. It implements cluster.Mender.
type Mender struct {
	w    *rtx.Worker
	view *kit.Member
}

var _ cluster.Mender = (*Mender)(nil)

// NewMender returns a mender that works through ep.
func NewMender(ep rdma.Endpoint) (*Mender, error) {
	l, v, err := readLayout(ep)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", Format, err)
	}
	w, err := rtx.Open(ep, l.rtx, l.options(l.Timeout))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", Format, err)
	}
	return &Mender{w, v}, nil
}

// Spares lists none.
func (m *Mender) Spares() []int { return nil }

// Mend has nothing to do.
func (m *Mender) Mend(rdma.View) error { return nil }

var errNoStandIn = errors.New("no node takes a dead one's place: what it had is lost")

// Restore restores nothing.
func (m *Mender) Restore(rdma.View, int, int) error { return errNoStandIn }

// Sweep has nothing to do.
func (m *Mender) Sweep(rdma.View) error { return nil }

// Recover ends what the client has left, which is fenced off: see rtx.Worker.Recover.
func (m *Mender) Recover(v rdma.View, c rdma.ClientID) error {
	if int(c) > m.w.Clients {
		return nil
	}
	m.view.Enter(v)
	return m.w.Recover(c)
}

// Outlives returns how many memory nodes may die so that all is still to be had: none, as objects have one copy. -1:
// one of the nodes is dead or gone.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, _, v, err := client.Look(f, "count the copies", readLayout)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	for n, member := range v.Members {
		if dead(n) || member.Gone {
			return -1, nil
		}
	}
	return 0, nil
}
