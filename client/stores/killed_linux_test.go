package stores

import (
	"math/bits"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/killed"
)

// killedPool returns what package killed knows of a pool.
func killedPool(p *Pool, err error) (killed.Pool, error) {
	if err != nil {
		return killed.Pool{}, err
	}
	open := func(ep rdma.Endpoint) (client.Store, error) { return p.Kind.Open(ep, Options{Fabric: p.Fabric}) }
	return killed.Pool{Fabric: p.Fabric, Open: open, Recoverer: p.Kind.Recoverer(nil), Check: p.Kind.Check}, nil
}

// lease returns the lease of a transaction that expects to take as long as the change of so many
// objects: 100 µs each, in powers of two.
func lease(objects int) time.Duration {
	return 8*time.Millisecond + (1<<bits.Len(uint(objects))-1)*100*time.Microsecond
}

// TestKilled kills a process every 50 ms, at any moment, in pools in which clients repair what they
// meet: no operation waits for the dead longer than a lease, nothing that was acknowledged is
// lost, nothing appears that was not written, and nothing leaks. FARKV_LONG=1 does so for ten
// minutes each, with 64 workers.
func TestKilled(t *testing.T) {
	t.Parallel() // beside TestKilledRecordAges, which waits
	for _, c := range []struct {
		name, store string
		own         Values
		lease       time.Duration
	}{
		// a rehash expects a microsecond a slot, of 1,344
		{"race-rtx", "race-rtx", Values{raceGroups.Name: 64}, lease(17)},
		{"race-rtx that grows", "race-rtx", Values{raceGroups.Name: 2, raceDepth.Name: 8}, lease(4)},
		// a split changes a leaf, its sibling, the node above, and a value
		{"sherman-rtx", "sherman-rtx", nil, lease(4)},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			x := killed.Test{
				Make: func(name string) (killed.Pool, error) {
					return killedPool(Create("shm:"+name, c.store,
						Params{Nodes: 2, Records: 8000, PairBytes: 1000, Own: c.own}))
				},
				Open:      func(name string) (killed.Pool, error) { return killedPool(Open("shm:" + name)) },
				Processes: []int{4, 2, 1, 1}, Keys: 40, Shared: 4, MaxValue: 900, Pause: 4 * time.Millisecond,
				Every: 50 * time.Millisecond, Round: 2 * time.Second, Rounds: 1, Recover: time.Second, Lease: c.lease,
			}
			if os.Getenv("FARKV_LONG") == "1" {
				x.Processes = []int{16, 8, 8, 4, 4, 4, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
				x.Round, x.Rounds = time.Minute, 10
			}
			x.Run(t)
		})
	}
}
