package rcuckoo

import (
	"math/bits"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// A client whose first try for a lock fails takes a ticket, so that clients get the lock about in
// the order in which they came. A shard has Params.Tickets queues at its leader, of two words each:
//
//	next     the number of the next ticket; changed by FAA only
//	serving  the number behind that of the last client that had its turn; changed by WRITEs only
//
// A client has its turn when less than turnsAtOnce numbers lie between serving and its own. Then it
// tries. Others only look at serving, at intervals that are shorter the nearer they are.
//
// Tickets are advice. They decide which clients try, and the lock bit alone decides which client
// holds the lock, so no proof relies on them. What may go wrong costs order, or a short wait:
//
//   - Locks of equal hashes share a queue.
//   - A client crashes while it waits, or gives up. The next one that has its turn sets serving
//     beyond its number.
//   - So many crash that none behind them has its turn, and serving stands still. Each look that
//     finds it where it was halves how many clients a waiter takes to be ahead. So the last of n
//     tries after log2(n) looks, which take as long as n clients usually hold the lock.
//   - A WRITE of serving lands late, and takes it back. The next one sets it right.
//   - Another copy leads, whose queues are zero. The operation begins again, without a ticket.
//
// A client that gets the lock with its first try has no ticket, and does not move serving.
const (
	queueServing = 8
	queueBytes   = 16

	// mostTickets bounds Params.Tickets by default: 16 KiB.
	mostTickets = 1024
)

// What follows was measured on the model of the paper's testbed. Fewer turns at once leave a lock
// free for longer; more of them take from the network what others need.
const (
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

// pacing is what a worker has learned from its waits.
type pacing struct {
	hold    time.Duration // for how long a client has a lock, from serving's pace: a moving average
	fastest time.Duration // try for a lock, in turn; 0: there was none
	late    time.Duration // by how much the last one was slower
}

// queueAt is the queue of a lock.
func (l *layout) queueAt(shard int, word uint32, bit int) rdma.Addr {
	n := spread(uint64(word)<<6|uint64(bit)) % uint64(l.Tickets)
	return l.at(l.tickets, shard, n*queueBytes)
}

// enqueue chooses the queue of a client that failed to take locks: that of the first of them that
// another client holds.
func (s *Store) enqueue(w *want, met uint64) {
	if way := met & w.bits; s.Tickets > 0 && !s.opt.Ticketless && w.queue == 0 && way != 0 {
		w.queue = s.queueAt(s.locks.shard, w.word, bits.TrailingZeros64(way))
	}
}

// addTurn adds the verbs that take a ticket, and look at the queue. They come behind the READs of
// rows: the fence of those would wait for them.
func (s *Store) addTurn(b *rdma.Batch, w *want) (take, look *rdma.Op) {
	if w.queue == 0 {
		return nil, nil
	}
	if !w.taken {
		take = b.FetchAdd(w.queue, 1)
	}
	return take, b.Read(w.queue.Add(queueServing), 8)
}

// seeTurn notes what these verbs found, and how long a try took.
func (s *Store) seeTurn(w *want, take, look *rdma.Op, took time.Duration) {
	if look == nil {
		return
	}
	p, now, serving := &s.pacing, s.ep.Now(), le.Uint64(look.Buf)
	if w.has() {
		if p.fastest == 0 || took < p.fastest {
			p.fastest = took
		}
		p.late = took - p.fastest
	}
	switch {
	case take != nil:
		w.taken, w.number, w.serving, w.since = true, take.Result, serving, now
		return
	case serving == w.serving:
		w.still++
		return
	case serving > w.serving:
		each := (now - w.since) / time.Duration(serving-w.serving)
		p.hold = max(p.hold+(min(each, 4*p.hold)-p.hold)/8, firstPause)
	}
	w.serving, w.since, w.still = serving, now, 0
}

// pause is what a client does between two tries, or looks. One that waits for its turn pauses for
// half the time in which it expects it.
func (s *Store) pause(w *want, r *kit.Retry) {
	if !w.taken {
		r.Wait()
		return
	}
	span := firstPause + latePause*s.pacing.late
	if !w.has() {
		span = max(span, time.Duration(min(w.ahead(), uint64(s.Clients)))*s.pacing.hold/2)
	}
	most := min(lastPause, s.opt.Failure/pauseShares)
	calm := *r
	calm.Tries, calm.Pause = max(w.still-calmLooks, 0), kit.Spread(min(span, most)/2, kit.Doubling(span, most))
	calm.Wait()
	r.Tries++
}

// addServed adds what says that clients had their turns, to what ends their intent. A crash ahead
// of it leaves serving where it is.
func (s *Store) addServed(b *rdma.Batch) {
	for i := range s.locks.wants {
		if w := &s.locks.wants[i]; w.taken && w.number >= w.serving && w.has() {
			b.WriteWord(w.queue.Add(queueServing), w.number+1)
		}
	}
}
