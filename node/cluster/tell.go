package cluster

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const (
	// tellAgain is for how many leases a keeper waits before it tells again what it could not tell.
	tellAgain = 4
	// sameAgain is for how long a failure like the last one is not told: there may be some a second,
	// for hours.
	sameAgain = time.Minute
)

// telling is what a keeper has to tell.
type telling struct {
	untold   []Event
	notUntil time.Duration
	failure  string // the last one, and when it was
	failedAt time.Duration
}

func (t *telling) add(e Event) {
	if e.What == Failed {
		text := e.String()
		if text == t.failure && e.At-t.failedAt < sameAgain {
			return
		}
		t.failure, t.failedAt = text, e.At
	}
	if len(t.untold) == MostUntold {
		t.untold = t.untold[1:]
	}
	t.untold = append(t.untold, e)
}

// tell tells what there is to tell. It takes a part of a lease at most, so that a node that does
// not answer costs no tenure.
func (k *keeper) tell(v *rdma.View) {
	t := &k.told
	if len(t.untold) == 0 || k.ep.Now() < t.notUntil {
		return
	}
	if err := k.o.Tell(k.ep, v, t.untold, k.o.Lease/4); err != nil {
		t.notUntil = k.ep.Now() + tellAgain*k.o.Lease
		return
	}
	t.untold, t.notUntil = nil, 0
}

// tellLast tells what is left when the keeper ends.
func (k *keeper) tellLast() {
	if len(k.told.untold) == 0 {
		return
	}
	if v, err := k.ep.Join(); err == nil {
		k.told.notUntil = 0
		k.tell(&v)
	}
}
