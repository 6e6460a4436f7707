package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// A victim is a client that begins to insert a record and dies in the midst of it (RCuckoo 5.4: "a
// partial insert operation that randomly truncates the batch of RDMA operations (including lock
// releases)"). Victims come in addition to the run's clients, one by one, on machines of their own.

// The least and the most verbs that a victim sends. In RCuckoo's INSERT the second verb takes the
// locks. The verb that releases them comes after the sixth, or is the sixth when one READ covers
// all that is locked.
const (
	leastSent = 2
	mostSent  = 6
)

// victims returns how many victims a run has.
func (c *Config) victims() int { return int(c.Failures * c.Duration.Seconds()) }

// struck returns when the i-th victim dies. The time counts from where measuring begins.
func (c *Config) struck(i int) time.Duration {
	return time.Duration((float64(i) + 0.5) / c.Failures * float64(time.Second))
}

// startVictims starts the clients that crash during the run.
func (r *run) startVictims() error {
	rnd := rand.New(rand.NewPCG(r.Seed, ^uint64(0)))
	for i := range r.victims() {
		sent := leastSent + rnd.Uint64N(mostSent-leastSent+1)
		var s session
		var err error
		w := r.sim.Go(fmt.Sprintf("victim %d", i), func(ep rdma.Endpoint) {
			ep.Sleep(r.struck(i) - (ep.Now() - r.began))
			// no caller sees it
			_ = s.store.Insert(r.Spec.Key(r.Spec.RecordCount+int64(i)), make([]byte, r.Spec.FieldLength))
		})
		r.sim.CrashAt(w, sent)
		if s, err = r.pool.open(w.Endpoint(), r.kind.Uncached(r.Options)); err != nil {
			return fmt.Errorf("victim %d: %w", i, err)
		}
	}
	return nil
}

// soon is how long after the beginning of a victim the measured client begins: the victim is dead
// then.
const soon = 50 * time.Microsecond

// Stranded measures how long a single client takes to insert the record that each victim of
// c.Failures began to insert. The time includes detecting that the victim died, repairing what it
// left, and inserting the record if the victim did not. Only the fields of the Result that have a
// meaning here are set.
func Stranded(ctx context.Context, c Config) (*Result, error) {
	c.Clients, c.Ops, c.Target, c.Changes = 1, 0, 0, nil
	var h workloads.Histogram
	res, err := simulate(ctx, c, func(r *run, p *participant, ep rdma.Endpoint) {
		for i := range r.victims() {
			ep.Sleep(r.struck(i) + soon - (ep.Now() - r.began))
			start := ep.Now()
			err := p.store.Insert(r.Spec.Key(r.Spec.RecordCount+int64(i)), make([]byte, r.Spec.FieldLength))
			if err != nil && !errors.Is(err, client.ErrExists) {
				r.failed = fmt.Errorf("insert what victim %d began to: %w", i, err)
				return
			}
			h.Record(ep.Now() - start)
		}
		r.ended, r.usage = ep.Now()-r.began, r.sim.Usage()
	})
	if err != nil {
		return nil, err
	}
	res.Operations, res.Calls = h.Count(), []Call{{Name: "INSERT", Latency: runner.Summarize(&h), CDF: cdf(&h)}}
	return res, nil
}
