package simulate

import (
	"context"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// Rehashed is a run in which all clients live, and one in which the client of its first rehash dies
// in the midst of it (rTX 6.2). Times count from where measuring begins.
type Rehashed struct {
	Whole, After *Result       // no client dies; the rehashing one does (nil: not asked for)
	Took         time.Duration // by the first rehash, from behind its lock until behind its commit
	Died         time.Duration // when the client died
	Again        time.Duration // from then until another client has done that rehash; 0: none has
}

// soonDies is the longest time from the beginning of a rehash to the death of its client. Other
// clients may go on then.
const soonDies = time.Millisecond

// neverDies is beyond the end of a run: no client dies in it, but as there is a fault, there is a
// master, as in the run that it is compared with.
const neverDies = 100 * time.Hour

// Rehash runs c, which is to insert into a store of RACE hashing until a subtable is split, and
// with dies once more. Both runs are the same until the client dies.
func Rehash(ctx context.Context, c Config, dies bool) (*Rehashed, error) {
	c.Clients, c.InFlight = max(c.Clients, 1), max(c.InFlight, 1)
	run := func(client string, at time.Duration) (*Result, []*rehash, error) {
		c.Faults = fmt.Sprintf("crash client=%q at=%v", client, at)
		seen := rehashes{open: map[string]*rehash{}, began: c.beginning()}
		c.Trace = seen.see
		r, err := Run(ctx, c)
		return r, seen.all, err
	}
	r, all, err := run(ClientName(0), neverDies)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 || all[0].to == 0 {
		return nil, fmt.Errorf("no subtable was split: %d rehashes began", len(all))
	}
	first := *all[0]
	w := &Rehashed{Whole: r, Took: first.to - first.from}
	if !dies {
		return w, nil
	}
	w.Died = first.from + min(w.Took/2, soonDies)
	if w.After, all, err = run(first.client, w.Died); err != nil {
		return nil, err
	}
	if r := all[0]; r.client != first.client || r.from != first.from || r.to != 0 {
		panic(fmt.Sprintf("the first rehash was %+v, and is %+v when its client dies", first, *r))
	}
	for _, r := range all[1:] {
		if r.subtable == first.subtable && r.to > 0 {
			w.Again = r.to - w.Died
			break
		}
	}
	return w, nil
}

// rehash is a rehash in a trace.
type rehash struct {
	client   string
	subtable rdma.Addr
	from, to time.Duration // since measuring began; to 0: it has not ended
}

// rehashes are those of a run, in the order in which they began.
type rehashes struct {
	began time.Duration
	all   []*rehash
	open  map[string]*rehash // by client
}

// see is the Trace of a run. It goes by the store's steps: a rehash begins with its first WRITE or
// READ after the lock. What it sweeps comes after its commit.
func (l *rehashes) see(e sim.Event) {
	if e.Kind != sim.Post {
		return
	}
	switch r := l.open[e.Worker]; e.Step {
	case "write subtable", "read subtable":
		if r == nil {
			r = &rehash{client: e.Worker, from: e.At - l.began}
			l.all, l.open[e.Worker] = append(l.all, r), r
		}
		if e.Step == "read subtable" && r.subtable == 0 {
			r.subtable = e.Addr
		}
	case "sweep slots":
		if r != nil {
			r.to = e.At - l.began
			delete(l.open, e.Worker)
		}
	}
}
