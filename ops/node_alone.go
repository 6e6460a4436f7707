package ops

import (
	"cmp"
	"context"
	"errors"

	"github.com/farkv/farkv/node/cluster/local"
)

// Lacking says why this machine has no such fabric, or cannot start nodes of it.
type Lacking struct{ Err error }

// Error implements error.
func (l Lacking) Error() string { return l.Err.Error() }

// PageSize is what a node's memory is a multiple of.
const PageSize = 4096

// StartNode starts a memory node as a process, which belongs to no pool, and returns its address.
// Its memory is rounded up to whole pages. stop ends it; after a crash 'farkv list' shows it, and
// 'farkv down' ends it. Where the machine cannot start one the error is a Lacking.
func (by Starter) StartNode(ctx context.Context, name string, memory uint64) (addr string,
	stop func() error, err error) {
	nodes := localNodes{Starter: by, n: 1, memory: (memory + PageSize - 1) / PageSize * PageSize}
	if err := nodes.may(name); err != nil {
		return "", nil, Lacking{Err: err}
	}
	here, err := local.Create(name)
	if err != nil {
		return "", nil, Lacking{Err: explainStarted(err, name)}
	}
	stop = func() error { return here.Stop(stopTime) }
	token, err := tokenFile(here)
	if err != nil {
		return "", nil, errors.Join(err, stop())
	}
	if err := here.Start(ctx, nodes.n, nodes.command(token)); err != nil {
		return "", nil, errors.Join(cmp.Or[error](ctx.Err(), Lacking{Err: err}), stop())
	}
	return by.Fabric + ":" + here.Nodes[0].Address, stop, nil
}
