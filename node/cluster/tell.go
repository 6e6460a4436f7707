package cluster

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const (
	// tellAgain is how many leases a keeper waits before it tries again to publish what it could
	// not.
	tellAgain = 4
	// sameAgain is for how long a failure with the same text as the last one is not published:
	// there may be several a second, for hours.
	sameAgain = time.Minute
)

// telling is what a keeper has to publish by Options.Tell.
//
// It is lost with the process: events are for operators, and nothing depends on them.
type telling struct {
	// Events that are not published, at most MostUntold, in their order.
	untold []Event
	// An election behind which nothing has happened; of no kind: there is none. It is published
	// before the next event, or when the tenure lasts: a command that opens a pool without a keeper
	// becomes its master for a moment, and many of those would take the places of failures.
	election Event
	// When Tell may be called again after it has failed.
	notUntil time.Duration
	// The last failure that was kept, and when it was.
	failure  string
	failedAt time.Duration
}

// add keeps an event, unless it repeats the last failure, or is an epoch in which nothing is swept:
// there may be several a second of those, too.
func (t *telling) add(e Event) {
	switch e.What {
	case Fenced:
		return
	case Elected:
		t.election = e
		return
	case Failed:
		text := e.String()
		if text == t.failure && e.At-t.failedAt < sameAgain {
			return
		}
		t.failure, t.failedAt = text, e.At
	}
	t.addElection()
	t.keep(e)
}

// addElection keeps the election that was held back.
func (t *telling) addElection() {
	if t.election.What == Elected {
		t.keep(t.election)
	}
	t.election = Event{}
}

// keep keeps an event. The oldest one is dropped if there are too many.
func (t *telling) keep(e Event) {
	if len(t.untold) == MostUntold {
		t.untold = t.untold[1:]
	}
	t.untold = append(t.untold, e)
}

// tell publishes the events that wait. It takes a quarter of a lease at most, so that a node which
// does not answer costs no tenure.
func (k *keeper) tell(v *rdma.View) {
	t := &k.told
	if k.ep.Now()-t.election.At >= k.o.Lease {
		t.addElection()
	}
	if len(t.untold) == 0 || k.ep.Now() < t.notUntil {
		return
	}
	if err := k.o.Tell(k.ep, v, t.untold, k.o.Lease/4); err != nil {
		t.notUntil = k.ep.Now() + tellAgain*k.o.Lease
		return
	}
	t.untold, t.notUntil = nil, 0
}

// tellLast publishes what is left when the keeper ends.
func (k *keeper) tellLast() {
	if len(k.told.untold) == 0 {
		return
	}
	if v, err := k.ep.Join(); err == nil {
		k.told.notUntil = 0
		k.tell(&v)
	}
}
