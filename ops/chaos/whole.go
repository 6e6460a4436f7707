package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
)

const (
	wholeEvery = 20 * time.Millisecond
	// wholeFor is for how long a pool has to look whole before it counts as whole. Between two
	// parts of a recovery it looks whole for one tick of its master.
	wholeFor = 400 * time.Millisecond
)

// UntilWhole waits until the pool is whole after a break: the break is mended, dead nodes are
// replaced, dead clients are recovered, and no recovery is left to do. It returns the time since
// which the pool is whole. progress, unless nil, is called with what UntilWhole waits for, whenever
// that changes. also, unless nil, returns what else to wait for; "": nothing. The error wraps
// rdma.ErrTimeout when patience is over, and the error of ctx when ctx ends.
func (b *Breaker) UntilWhole(ctx context.Context, behind *Broken, patience time.Duration, also func() string,
	progress func(waits string)) (time.Time, error) {
	began, said := time.Now(), ""
	var since time.Time // it looks whole; zero: it does not
	tick := time.NewTicker(wholeEvery)
	defer tick.Stop()
	for {
		waits := b.waits(behind)
		if waits == "" && also != nil {
			waits = also()
		}
		now := time.Now()
		switch {
		case waits != "":
			since = time.Time{}
		case since.IsZero():
			since = now
		case now.Sub(since) >= wholeFor:
			return since, nil
		}
		if progress != nil && waits != "" && waits != said {
			progress(waits)
			said = waits
		}
		if now.Sub(began) > patience+behind.For {
			return since, fmt.Errorf("%s is not whole within %v: it waits for %s: %w", b.pool.Address, patience, waits,
				rdma.ErrTimeout)
		}
		select {
		case <-ctx.Done():
			return since, ctx.Err()
		case <-tick.C:
		}
	}
}

// waits returns what keeps the pool from being whole after a break; "": it is whole.
func (b *Breaker) waits(behind *Broken) string {
	if !behind.mended() {
		return "the end of the break"
	}
	f, k := b.pool.Fabric, b.pool.Kind
	nodes, view := ops.NodesOf(f)
	if behind.Kind == BreakNode && !k.Majority {
		if n := behind.Nodes[0]; !nodes[n].Gone {
			return fmt.Sprintf("node %d, which died", n)
		}
	}
	if behind.Client != nil && behind.Kind != BreakStop {
		for _, c := range f.Clients() {
			if int(c.ID) == behind.Client.ID && c.Life == behind.life {
				return fmt.Sprintf("client %d %q, which died", c.ID, c.Name)
			}
		}
	}
	if todo := ops.Unrecovered(f, k.Majority); len(todo) > 0 {
		return todo[0]
	}
	if n := vacant(b.pool, nodes); n >= 0 {
		return fmt.Sprintf("a spare in the place of node %d", n)
	}
	if _, reports := f.(rdma.MasterReporter); reports && k.Recoverer != nil && ops.MasterOf(f) == nil {
		return fmt.Sprintf("a master, after epoch %d", view.Epoch)
	}
	return ""
}

// vacant returns a node that is gone and that a free spare can replace; negative: there is none.
func vacant(p *stores.Pool, nodes []ops.Node) int {
	if p.Kind.Majority {
		return -1
	}
	data := len(nodes) - ops.ShapeOf(p).Spares
	filled, free, empty := map[int]bool{}, false, -1
	for i, n := range nodes {
		if n.Replaces != nil {
			filled[*n.Replaces] = true
		} else if i >= data && n.Up {
			free = true
		}
	}
	for i, n := range nodes {
		held := i < data || n.Replaces != nil
		if n.Gone && held && !filled[i] {
			empty = i
		}
	}
	if !free {
		return -1
	}
	return empty
}
