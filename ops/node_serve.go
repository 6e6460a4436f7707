package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
)

// Pauses between two tries to begin with a pool that was made a moment ago: its other nodes may not
// know yet that it is.
const firstAttempt, lastAttempt = 20 * time.Millisecond, 2 * time.Second

// attend serves the store of the pool that the node has, where stores have servers, and of those
// that it comes to have behind that, until ctx ends.
func (n *nodeServer) attend(ctx context.Context, c *NodeConfig) {
	for pause := firstAttempt; ctx.Err() == nil; {
		o, err := n.Beside()
		if err != nil {
			o.ID = ""
		} else if again, err := n.serveStore(ctx, o, c); err != nil {
			if again && pause < lastAttempt {
				pause *= 2
				_ = sleepUntil(ctx, time.Now().Add(pause))
				continue
			}
			c.Log.Error("does not serve the pool's store", "pool", o.ID, "why", err.Error())
			n.Tell(func() *fabrics.Server { return &fabrics.Server{Problem: err.Error()} })
		}
		pause = firstAttempt
		n.awaitOther(ctx, o.ID)
		n.Tell(nil)
	}
}

// awaitOther waits until the node has another pool than the one of an ID, or ctx ends; "": until it
// has one.
func (n *nodeServer) awaitOther(ctx context.Context, id string) {
	for {
		now, err := n.Beside()
		if err != nil {
			now.ID = ""
		}
		if now.ID != id {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-n.Changed():
		}
	}
}

// serversTime bounds the wait for the servers of a pool that was just made, or brought back;
// silentTime for a node that does not answer.
const serversTime, silentTime = 20 * time.Second, 3 * time.Second

// awaitServers waits until servers run beside the memory nodes of a pool, where stores have
// servers; of a new pool, until they serve all of it. Servers of a pool that was brought back wait
// for a master. Then nodes are left out that the pool went on without, or that hold nothing of it:
// no server ever begins there. absent names each, and why. The error names those that were waited
// for in vain.
func awaitServers(ctx context.Context, p *stores.Pool, back bool) (absent []string, err error) {
	if p.Kind.Serve == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, serversTime, fmt.Errorf("not all serve after %v", serversTime))
	defer cancel()
	for began := time.Now(); ; {
		all, err := inspect(ctx, p.Address, p.Fabric)
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
		if sleepUntil(ctx, time.Now().Add(firstAttempt)) != nil {
			return absent, fmt.Errorf("wait for the servers of %s: %w: %s", p.Address, context.Cause(ctx),
				strings.Join(waits, ", "))
		}
	}
}

// absence returns why no server will begin beside a node of a pool that was brought back; "": it
// will, or may. late: it was waited for.
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

// serveStore runs the server of the store that the node's pool holds, if it has one, until ctx
// ends, or the node has another pool. An error says why it does not serve, or no longer; again: it
// may if it is tried again.
func (n *nodeServer) serveStore(ctx context.Context, o fabrics.NodeOptions, c *NodeConfig) (again bool, err error) {
	f, err := fabrics.OpenBeside(o, c.Device)
	if err != nil {
		return true, err
	}
	defer func() {
		if wrong := f.Close(); wrong != nil { // such as a pool that is gone, to which nothing is given back
			c.Log.Debug("leave the pool", "pool", o.ID, "why", wrong.Error())
		}
	}()
	p, err := stores.Of(n.Addr(), f)
	if err != nil || p.Kind.Serve == nil {
		return errors.Is(err, rdma.ErrNodeDown), err
	}
	ep, err := f.Open(fmt.Sprint(stores.ServerName, o.BesideNode))
	if err != nil {
		return true, err
	}
	defer ep.Close()
	server, err := p.Kind.Serve(ep, f, o.BesideNode)
	switch {
	case errors.Is(err, rdma.ErrExists):
		return false, fmt.Errorf("an earlier server left what this version does not read: %w", err)
	case err != nil:
		return errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrUnreachable), err
	}
	n.Tell(func() *fabrics.Server {
		return &fabrics.Server{Store: p.Kind.Name, Counts: server.Counts(nil), Waits: !server.Ready()}
	})
	defer n.Tell(nil)
	c.Log.Info("serves the pool's store", "pool", o.ID, "store", p.Kind.Name, "node", o.BesideNode)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- server.Run(ep)
		stop()
	}()
	n.awaitOther(running, o.ID)
	server.Stop()
	err = <-ended
	if now, gone := n.Beside(); ctx.Err() != nil || gone != nil || now.ID != o.ID {
		return false, nil // what failed did so for that
	}
	return false, err
}
