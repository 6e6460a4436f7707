package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads"
)

// Leases is a run in which clients change objects of rTX, and none dies. It measures how often
// clients suspect a lock nevertheless (rTX 6.4).
type Leases struct {
	Profile          string
	Hardware         []string // as Config.Hardware
	Clients, Objects int
	Writes           int // objects that a transaction changes
	stores.ObjectOptions
	// Stalls is how often a second a client loses its core, and Stall is for how long on average.
	// Both have exponential distributions.
	Stalls float64
	Stall  time.Duration
	// Offset is how far ahead clocks may be, and Drift by how much they may be fast or slow, in
	// parts in a million.
	Offset   time.Duration
	PPM      float64
	Duration time.Duration
	Seed     uint64
}

// Suspected is the result of Leases.
type Suspected struct {
	Transactions uint64 // that were committed
	Suspected    uint64 // of them, those with locks that passed for a dead client's
	Longest      time.Duration
	Stalls       int // in the run
}

// Share is how many of the transactions were suspected, in percent.
func (s *Suspected) Share() float64 {
	return 100 * float64(s.Suspected) / float64(max(s.Transactions, 1))
}

// Run runs the clients in virtual time.
func (l *Leases) Run(ctx context.Context) (*Suspected, error) {
	profile, err := sim.LookupProfile(l.Profile)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	objects, err := stores.NewObjects(l.Objects, l.Clients+1, l.Writes)
	if err != nil {
		return nil, err
	}
	o := profile.Options(l.Seed, 1)
	o.Memory, o.Clients, o.Handler = objects.Memory(), l.Clients+1, node.Serve
	o.ClockOffset, o.Drift, o.Faults = l.Offset, l.PPM, l.stalls()
	o.Limit, o.MaxEvents = setUp+l.Duration+patience, 1<<62
	if err := change(&o, l.Hardware); err != nil {
		return nil, err
	}
	s := sim.New(o)
	defer s.Close()
	maker, err := s.Open("maker")
	if err == nil {
		err = objects.Make(s, maker)
	}
	if err != nil {
		return nil, fmt.Errorf("make objects: %w", err)
	}
	sum := &Suspected{Stalls: len(o.Faults)}
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	var failed error
	for i := range l.Clients {
		var u *stores.Updater
		w := s.Go(ClientName(i), func(ep rdma.Endpoint) {
			ep.Sleep(time.Duration(i+1) * apart)
			for s.Now() < l.Duration && failed == nil && !stop.Load() {
				began := s.Now()
				failed = errors.Join(failed, u.Update(l.some(ep.Rand())))
				sum.Longest = max(sum.Longest, s.Now()-began)
			}
			commits, suspected := u.Counts()
			sum.Transactions, sum.Suspected = sum.Transactions+commits, sum.Suspected+suspected
		})
		if u, err = objects.Open(w.Endpoint(), l.ObjectOptions); err != nil {
			return nil, fmt.Errorf("client %d: %w", i, err)
		}
	}
	if err := errors.Join(s.Run(), failed, ctx.Err()); err != nil {
		return nil, fmt.Errorf("change objects: %w", err)
	}
	return sum, nil
}

// some picks the objects of a transaction, evenly.
func (l *Leases) some(r *rand.Rand) []int {
	picked := make([]int, 0, l.Writes)
	taken := map[int]bool{}
	for len(picked) < l.Writes {
		if i := r.IntN(l.Objects); !taken[i] {
			taken[i] = true
			picked = append(picked, i)
		}
	}
	return picked
}

// stalls draws when clients do not run.
func (l *Leases) stalls() (faults sim.Faults) {
	if l.Stalls == 0 {
		return nil
	}
	r := rand.New(rand.NewPCG(l.Seed, 0x7374616c6c))
	for i := range l.Clients {
		for at := time.Duration(0); ; {
			if at += time.Duration(r.ExpFloat64() / l.Stalls * float64(time.Second)); at >= l.Duration {
				break
			}
			faults = append(faults, sim.Fault{
				Kind: sim.StallFault, Client: ClientName(i), At: at,
				For: max(time.Duration(r.ExpFloat64()*float64(l.Stall)), 1),
			})
		}
	}
	return faults
}
