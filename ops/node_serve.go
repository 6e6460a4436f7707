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

// attend runs the server of the store in the node's pool, if the store has servers. When the node
// comes into another pool, it goes over to that one. It returns when ctx ends.
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

// awaitOther waits until the node is in another pool than the one with this ID, or ctx ends. "":
// until the node is in a pool.
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

// serversTime bounds the wait for the servers of a pool that was just made, or brought back.
// silentTime bounds the wait for a node that does not answer.
const serversTime, silentTime = 20 * time.Second, 3 * time.Second

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

// serveStore runs the server of the store in the node's pool, if it has one, until ctx ends or the
// node is in another pool. The error is why the server does not serve, or no longer serves. again
// reports whether another try may succeed.
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
