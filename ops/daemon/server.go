package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
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
				_ = ops.SleepUntil(ctx, time.Now().Add(pause))
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
