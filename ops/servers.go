package ops

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
)

// serversTime bounds the wait for the servers of a pool that was just made, or brought back.
// silentTime bounds the wait for a node that does not answer.
const serversTime, silentTime = 20 * time.Second, 3 * time.Second

// serversEvery is how often awaitServers asks the nodes.
const serversEvery = 20 * time.Millisecond

// awaitServers waits until servers run beside the memory nodes of a pool, if the store has servers.
// In a new pool it waits until they serve all of it. In a pool that was brought back (back) servers
// wait for a master first, and it does not wait for nodes that the pool went on without, or that
// hold none of its data: no server ever begins there. absent has each of these nodes, and why. The
// error has the nodes with servers that did not begin in time.
func awaitServers(ctx context.Context, p *stores.Pool, back bool) (absent []string, err error) {
	if p.Kind.Serve == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, serversTime, fmt.Errorf("not all serve after %v", serversTime))
	defer cancel()
	for began := time.Now(); ; {
		all, err := Inspect(ctx, p.Address, p.Fabric)
		if err != nil {
			return nil, err
		}
		absent = nil
		var waits []string
		var problem error
		view := p.Fabric.View()
		for i, s := range all[:min(len(all), p.Fabric.Nodes())] {
			why := ""
			if back {
				why = s.absence(view.Members[i].Gone, time.Since(began) > silentTime)
			}
			switch {
			case why != "":
				absent = append(absent, fmt.Sprintf("node %d does not serve %s: %s", i, p.Kind.Name, why))
			case s.Server == nil:
				waits = append(waits, fmt.Sprintf("node %d (%s)", i, cmp.Or(s.Problem, "its server has not begun")))
			case s.Server.Problem != "":
				problem = cmp.Or(problem, fmt.Errorf("node %d does not serve %s: %s", i, p.Kind.Name, s.Server.Problem))
			case s.Server.Waits && !back:
				waits = append(waits, fmt.Sprintf("node %d (its server waits for others)", i))
			}
		}
		if len(waits) == 0 {
			return absent, problem
		}
		if SleepUntil(ctx, time.Now().Add(serversEvery)) != nil {
			return absent, fmt.Errorf("wait for the servers of %s: %w: %s", p.Address, context.Cause(ctx),
				strings.Join(waits, ", "))
		}
	}
}

// absence returns why no server will begin beside a node of a pool that was brought back. "": one
// will, or may. late: the caller has waited for it already.
func (s *Served) absence(gone, late bool) string {
	switch {
	case gone || s.Expelled:
		return "it is gone: the pool went on without it"
	case !s.Reachable && late:
		return "it does not answer: " + s.Problem
	case s.Reachable && !s.InPool:
		return "it holds nothing of this pool: its file was missing or empty, or is another one's"
	}
	return ""
}
