package rcuckoo

import (
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/killed"
)

// killedPool is so full that INSERTs move other keys.
func killedPool() table.Params {
	p := extentPool(2)
	p.Rows, p.RowsPerLock, p.LockWords, p.Slabs, p.SlabExtents, p.Clients = 10, 1, 2, 30, 8, 250
	return p
}

// patience is a long failure timer: a busy machine stops workers for a while, and they must not
// be fenced off for that.
const patience = 2 * time.Second

// TestKilled kills processes during their operations, a thousand with FARKV_LONG=1. In some runs
// a master recovers them at once. In others there is none, and the living clients repair what
// they wait for.
func TestKilled(t *testing.T) {
	t.Parallel()
	p := killedPool()
	l, err := table.New(p, 2)
	must(t, err)
	pool := func(f *shm.Fabric, err error) (killed.Pool, error) {
		return killed.Pool{
			Fabric: f, Check: Check,
			Open: func(ep rdma.Endpoint) (client.Store, error) {
				return Open(ep, session.Options{Pool: f, Failure: patience})
			},
			Recoverer: func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) },
		}, err
	}
	x := killed.Test{
		Make: func(name string) (killed.Pool, error) {
			return pool(shm.Create(name, shm.Geometry{Nodes: 2, Memory: l.Bytes, Clients: p.Clients}, node.Serve,
				func(f *shm.Fabric) error { return Make(f, p) }))
		},
		Open:      func(name string) (killed.Pool, error) { return pool(shm.Open(name, node.Serve)) },
		Processes: []int{2, 2, 2}, Keys: 20, Shared: 4, MaxValue: 900,
	}
	rounds := 1
	if os.Getenv("FARKV_LONG") == "1" {
		rounds = 15
	}
	for _, c := range []struct {
		name                  string
		every, round, recover time.Duration
		rounds                int
	}{
		{"recovered", 30 * time.Millisecond, time.Second, 30 * time.Millisecond, 2 * rounds},
		{"left to others", 300 * time.Millisecond, 3 * time.Second, 0, rounds},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := x
			x.Every, x.Round, x.Recover, x.Rounds = c.every, c.round, c.recover, c.rounds
			x.Run(t)
		})
	}
}
