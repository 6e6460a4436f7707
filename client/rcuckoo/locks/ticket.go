package locks

import (
	"math/bits"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// A client that fails in its first try for a lock takes a ticket, so that clients get the lock
// about in the order in which they came. A shard has Params.Tickets queues at its leader: see
// table.QueueServing.
//
// A client has its turn when its number is less than turnsAtOnce above serving. Then it tries.
// Other clients only look at serving, more often the nearer their turn is.
//
// Tickets are advice. They decide which clients try, and the lock bit alone decides which client
// holds the lock, so no proof relies on them. What may go wrong costs order, or a short wait:
//
//   - Locks of equal hashes share a queue.
//   - A client crashes while it waits, or gives up. The next one that has its turn sets serving
//     beyond its number.
//   - So many clients crash that none behind them has its turn, and serving stands still. Each
//     look that finds serving unchanged halves how many clients a waiter takes to be ahead. So
//     the last of n waiters tries after log2(n) looks, which take as long as n clients usually
//     hold the lock.
//   - A WRITE of serving lands late, and sets it back. The next WRITE corrects it.
//   - Another copy leads, where the queues are zero. The operation begins again, without a ticket.
//
// A client that gets the lock with its first try has no ticket, and does not move serving.
//
// What follows was measured on the model of the paper's testbed. Fewer turns at once leave a lock
// free for longer; more of them take from the network what others need.
const (
	// turnsAtOnce is how many clients have their turn at once.
	turnsAtOnce = 9
	// A client that has its turn pauses for latePause times as long as its try took longer than its
	// fastest one did: a network that is full makes tries slow.
	latePause = 8
	// calmLooks is how many looks may find serving where it was before pauses grow: the clients in
	// front may have bad luck.
	calmLooks = 4
)

// turn is a client's place among those that wait for a lock. Zero: it has not failed to take the
// lock.
type turn struct {
	queue   rdma.Addr     // its queue; 0: none
	taken   bool          // it has a ticket
	number  uint64        // of the ticket
	serving uint64        // as the client saw it last
	since   time.Duration // when the client saw it first like that
	still   int           // how many looks have found it like that since
	posted  time.Duration // when the client looked last
}

// ahead is how many clients this one takes to be ahead of it.
func (t *turn) ahead() uint64 {
	if !t.taken || t.number < t.serving {
		return 0
	}
	return (t.number - t.serving) >> min(t.still, 63)
}

// has reports whether the client may try for the lock. One that is about to take a ticket may not:
// if it got the lock ahead of others, serving would stay at its number for a while.
func (t *turn) has() bool { return t.queue == 0 || t.taken && t.ahead() < turnsAtOnce }

// pacing is what a worker has learned from its waits. It outlives operations.
type pacing struct {
	hold    time.Duration // how long a client holds a lock: a moving average, from how fast serving advances
	fastest time.Duration // the fastest try for a lock, of those in turn; 0: there was none
	late    time.Duration // by how much the last try was slower than that
}

// enqueue chooses the queue of a client that failed to take locks: the queue of the first of
// these locks that another client holds. met is the word that the client found. The ticket comes
// with the next trip, so waiting for a lock costs no trip of its own.
func (l *Locks) enqueue(o *session.Op, t *turn, w table.Want, met uint64) {
	if way := met & w.Bits; o.Table.Tickets > 0 && !o.Opt.Ticketless && t.queue == 0 && way != 0 {
		t.queue = o.Table.QueueAt(l.Shard, w.Word, bits.TrailingZeros64(way))
	}
}

// addTurn adds the verbs that take a ticket, and look at the queue. They come behind the READs of
// rows: the fence of those would wait for them.
func (l *Locks) addTurn(o *session.Op, b *rdma.Batch, t *turn) (take, look *rdma.Op) {
	if t.queue == 0 {
		return nil, nil
	}
	t.posted = o.EP.Now()
	if !t.taken {
		take = b.FetchAdd(t.queue, 1)
	}
	return take, b.Read(t.queue.Add(table.QueueServing), 8)
}

// seeTurn notes what the verbs of addTurn found, and how long a try took.
func (l *Locks) seeTurn(o *session.Op, t *turn, take, look *rdma.Op) {
	if look == nil {
		return
	}
	p, now, serving := &l.pacing, o.EP.Now(), le.Uint64(look.Buf)
	// Only tries are compared: a look has no CAS.
	if t.has() {
		took := now - t.posted
		if p.fastest == 0 || took < p.fastest {
			p.fastest = took
		}
		p.late = took - p.fastest
	}
	switch {
	case take != nil:
		t.taken, t.number, t.serving, t.since = true, take.Result, serving, now
		return
	case serving == t.serving:
		t.still++
		return
	case serving > t.serving: // one sample counts at most four times the average
		each := (now - t.since) / time.Duration(serving-t.serving)
		p.hold = max(p.hold+(min(each, 4*p.hold)-p.hold)/8, session.FirstPause)
	}
	t.serving, t.since, t.still = serving, now, 0
}

// pause pauses between two tries or looks. A client that waits for its turn pauses for half of
// the time that it expects to wait. No pause is longer than a share of the failure timer, as each
// try is a heartbeat.
func (l *Locks) pause(o *session.Op, t *turn, r *kit.Retry) {
	if !t.taken {
		r.Wait()
		return
	}
	span := session.FirstPause + latePause*l.pacing.late
	if !t.has() {
		span = max(span, time.Duration(min(t.ahead(), uint64(o.Table.Clients)))*l.pacing.hold/2)
	}
	most := min(session.LastPause, o.Opt.Failure/session.PauseShares)
	calm := *r
	calm.Tries, calm.Pause = max(t.still-calmLooks, 0), kit.Spread(min(span, most)/2, kit.Doubling(span, most))
	calm.Wait()
	r.Tries++
}

// addServed adds the WRITEs of serving to the batch that ends the intent: the client has had its
// turns. A crash before them leaves serving where it is, and the next client sets it.
func (l *Locks) addServed(o *session.Op, b *rdma.Batch) {
	for i := range l.wants {
		if t := &l.turns[i]; t.taken && t.number >= t.serving && t.has() {
			b.WriteWord(t.queue.Add(table.QueueServing), t.number+1)
		}
	}
}
