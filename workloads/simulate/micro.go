package simulate

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// Micro measures what one client takes for each operation when it is alone: n INSERTs, then as many
// UPDATEs, SEARCHes and DELETEs of the same records (FUSEE 6.2: "a single client to iteratively
// execute each operation 10,000 times"). The pool must have room for them beside the records of
// c.Spec. It returns those of the Result's fields that have a meaning.
func Micro(ctx context.Context, c Config, n int64) (*Result, error) {
	c.Clients, c.Ops, c.Duration, c.Target, c.Changes = 1, 4*n, 0, 0, nil
	var calls []Call
	res, err := simulate(ctx, c, func(r *run, p *participant, ep rdma.Endpoint) {
		calls = r.micro(p, ep, n)
		r.ended, r.usage = ep.Now()-r.began, r.sim.Usage()
	})
	if err != nil {
		return nil, err
	}
	res.Operations, res.Calls = uint64(4*n), calls
	return res, nil
}

// micro does each operation n times.
func (r *run) micro(p *participant, ep rdma.Endpoint, n int64) (calls []Call) {
	value := make([]byte, r.Spec.FieldLength)
	for _, op := range []struct {
		name string
		do   func(key []byte) error
	}{
		{"INSERT", func(key []byte) error { return p.store.Insert(key, value) }},
		{"UPDATE", func(key []byte) error { return p.store.Update(key, value) }},
		{"SEARCH", func(key []byte) error { _, err := p.store.Get(key); return err }},
		{"DELETE", func(key []byte) error { return p.store.Delete(key) }},
	} {
		var h workloads.Histogram
		before := *ep.Counters()
		for i := range n {
			if r.stop.Load() {
				return nil
			}
			key := r.Spec.Key(r.Spec.RecordCount + i)
			if len(value) >= 8 {
				binary.LittleEndian.PutUint64(value, uint64(i)) // the values differ
			}
			start := ep.Now()
			if err := op.do(key); err != nil {
				r.failed = fmt.Errorf("%s %s: %w", op.name, key, err)
				return nil
			}
			h.Record(ep.Now() - start)
		}
		used := ep.Counters().Sub(before)
		calls = append(calls, Call{Name: op.name, Latency: runner.Summarize(&h), CDF: cdf(&h),
			Trips: float64(used.Trips) / float64(n), Cost: newCost(used, uint64(n))})
	}
	return calls
}

// Posted is a verb that an operation sent.
type Posted struct {
	Step  string // of its protocol: the name of the batch
	Verb  rdma.Verb
	Bytes int // of payload
}

// Inserts does n INSERTs by one client that is alone, and returns the verbs of each, in order, as
// they were sent until the next one began.
func Inserts(ctx context.Context, c Config, n int64) ([][]Posted, error) {
	c.Clients, c.Ops, c.Duration, c.Target, c.Changes = 1, n, 0, 0, nil
	var all [][]Posted
	c.Trace = func(e sim.Event) {
		if e.Kind == sim.Post && len(all) > 0 {
			last := &all[len(all)-1]
			*last = append(*last, Posted{string(e.Step), e.Verb, e.Len})
		}
	}
	_, err := simulate(ctx, c, func(r *run, p *participant, ep rdma.Endpoint) {
		ep.Sleep(max(0, r.began-ep.Now()))
		value := make([]byte, r.Spec.FieldLength)
		for i := range n {
			if r.stop.Load() {
				return
			}
			all = append(all, nil)
			if err := p.store.Insert(r.Spec.Key(r.Spec.RecordCount+i), value); err != nil {
				r.failed = fmt.Errorf("insert %d: %w", i, err)
				return
			}
		}
	})
	return all, err
}
