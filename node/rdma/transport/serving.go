package transport

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
)

// ServedBytes is the body of the answer to a serve frame. It is a u64 of ns and a u64 that is the
// epoch, little-endian.
const ServedBytes = 16

// serving is the question to a node for how long it may serve, in flight since a time on
// realtime.Boot. No worker waits for its answer. It is a Flight. One that is lost changes
// nothing: over the next connection it is asked anew.
type serving struct {
	l    *Link
	sent time.Duration
}

func (serving) Lose(error) {}

// All counts from before the question was sent: the node said how long it serves at some later
// time, so that it serves for longer. What a link said before it broke stays true.
func (q serving) Land(h Header, body []byte) error {
	if h.Kind != KindServe || len(body) != ServedBytes {
		return fmt.Errorf("frame of kind %d with %d bytes tells how long a node serves: %w",
			h.Kind, len(body), ErrProtocol)
	}
	// A node may say anything. An hour keeps the sum from overflowing, and four times Every is
	// the pool's lease.
	left := time.Duration(binary.LittleEndian.Uint64(body))
	q.l.until.Store(int64(q.sent + min(max(left, 0), time.Hour)))
	q.l.hears.Store(int64(q.sent + min(max(left, 0), 4*q.l.Every)))
	q.l.fence.Store(binary.LittleEndian.Uint64(body[8:]))
	return nil
}

// keepServed asks a node of a pool with devices for how long it may serve, a few times in each
// lease, until the connection breaks. It asks at once, and then at the beats of Link.Every.
// Answers are read by the stream's goroutine unless a worker reads.
func (l *Link) keepServed(s *stream) {
	for {
		l.askServing()
		s.call()
		select {
		case <-s.over:
			return
		case <-l.stop:
			return
		case <-time.After(realtime.Beat(l.Every)):
		}
	}
}

// askServing does not wait for the answer.
func (l *Link) askServing() {
	// a link that is down asks again
	_ = l.Send(KindServe, 0, serving{l, realtime.Boot()}, func(out []byte) []byte { return out })
}

// Served returns until when the node serves for sure, on realtime.Boot, and the epoch that was
// fenced last there, as it said then. Both are 0 before the first answer. They are not read at
// one moment: the fence may be that of a later answer.
func (l *Link) Served() (until time.Duration, fence uint64) {
	return time.Duration(l.until.Load()), l.fence.Load()
}

// HeardUntil returns until when, on realtime.Boot, what comes by way of the node may be looked at:
// see Control.Hears.
func (l *Link) HeardUntil() time.Duration { return time.Duration(l.hears.Load()) }

// Reach returns which connection the link has, from 1 on, or why it is down. What depends on a
// connection remembers the number, and finds another one when it was broken since.
func (l *Link) Reach() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times, l.why
}
