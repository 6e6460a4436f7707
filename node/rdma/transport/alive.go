package transport

import (
	"fmt"
	"net"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

const (
	// PingEvery is how soon a connection on which nothing comes in is asked whether it is alive.
	PingEvery = 200 * time.Millisecond
	// DeadAfter is after how long without a word, since the last one that was heard, a node that
	// was asked is given up. PingEvery is far below it, and below the silence after which a node
	// ends a connection. A machine that is busy may not run a process for a good part of a
	// second. It also bounds how long Link.Keep waits for a node to let a new connection in. And so
	// soon a node is asked though it says much: one that hears nothing over a connection for three
	// times as long ends it, and a process may do nothing but get messages.
	DeadAfter = time.Second
)

// watch asks a silent node whether it is alive, and gives it up when it does not answer. Time for
// which this process itself stood still, since its machine was busy or it was stopped, does not
// count: what the node said meanwhile is not read yet. A node that is given up may live, and go
// on executing what it has got: only a fence or an expulsion says that it does not. An answer to
// anything, or a message, is as good as the answer to a ping. watch runs as long as the
// connection, in a goroutine of its own.
func (l *Link) watch(s *stream) {
	nc := s.nc
	var p ping
	beat := time.NewTimer(0)
	defer beat.Stop()
	for looked := realtime.Now(); ; {
		beat.Reset(realtime.Beat(PingEvery / 2))
		select {
		case <-s.over:
			return
		case <-l.stop:
			l.fail(nc, fmt.Errorf("fabric: %w", rdma.ErrClosed))
			return
		case <-beat.C:
		}
		s.call() // if no worker has read for that long, the stream's goroutine has to
		now, heard := realtime.Now(), time.Duration(l.heard.Load())
		silent, ask := p.turn(now, looked, heard, p.asked > heard && l.progressed(nc, &p))
		looked = now
		if silent > DeadAfter {
			l.fail(nc, fmt.Errorf("node at %s has said nothing for %v: %w", l.Addr, silent, rdma.ErrNodeDown))
			return
		}
		if ask {
			l.ping(nc, &p)
		}
	}
}

// failAtStop ends the connection with the fabric, as watch does. It takes the place of watch
// where silence ends no connection: see Link.Unwatched.
func (l *Link) failAtStop(s *stream) {
	select {
	case <-s.over:
	case <-l.stop:
		l.fail(s.nc, fmt.Errorf("fabric: %w", rdma.ErrClosed))
	}
}

// ping is the question whether a node is alive, for as long as nothing comes in.
//
// It waits behind what was sent before. While that gets through, over a link that is slow, silence
// is no sign of death: the node cannot answer what has not reached it. So only that counts which
// the node's machine has acknowledged of what was sent up to the ping. There an end is in sight: a
// node that stands still has its machine acknowledge as much as a socket's buffer holds, a
// connection that is half open nothing, and what comes behind the ping changes neither.
type ping struct {
	asked time.Duration // on realtime.Now
	moved time.Duration // when it was seen last to get nearer to the node
	still time.Duration // of the time since then, or since something was heard, for how long this process stood still
	end   uint64        // of the bytes that were to be written to the connection, where it ends
	// of those that the node's machine has to acknowledge, the number of the last one; 0: it is not
	// written yet
	last  uint64
	acked uint64 // of those, how many were acknowledged
}

// turn is one look of watch's, at now, behind the one at looked. nearer is whether a ping that is
// not answered has got nearer to the node since. It returns for how long the node has not answered,
// and whether it has to be asked, for which p then is.
func (p *ping) turn(now, looked, heard time.Duration, nearer bool) (silent time.Duration, ask bool) {
	// A beat is PingEvery/2 away at most. What a turn takes beyond that, the process stood still.
	p.still += max(0, now-looked-PingEvery/2)
	switch {
	// It was asked, and nothing has come in since.
	case p.asked > heard:
		if nearer {
			p.moved, p.still = now, 0
		}
		return now - max(heard, p.moved) - p.still, false
	case now-heard > PingEvery, now-p.asked > DeadAfter:
		// The silence counts from what was heard last, and so does still: of what it was before
		// that, nothing is kept.
		*p = ping{asked: now, still: min(p.still, now-heard)}
		return 0, true
	}
	// Something was heard lately. The silence begins anew, and with it the time in which this
	// process stood still.
	p.still = 0
	return 0, false
}

// ping sends one. No flight waits for its answer, which may come out of turn: see memnode's
// conn.sendKeepalives. The acknowledged bytes are read first, so that progressed has something to
// compare with. When the link's queue is full, no ping is sent: p.asked is set nevertheless, and
// the silence goes on.
func (l *Link) ping(nc net.Conn, p *ping) {
	_, p.acked, _ = sentOver(nc)
	s, err := l.Begin()
	if err != nil {
		return
	}
	// The lock is held from here to Done, so that end is where this ping ends.
	s.ping()
	p.end = l.taken + uint64(len(l.out))
	if s.Done() {
		l.Flush()
	}
}

// ping appends a ping. No flight waits for its answer.
func (s Sending) ping() {
	at := len(s.l.out)
	s.l.out = append(s.l.out, make([]byte, HeaderBytes)...)
	Header{Kind: KindPing}.Put(s.l.out[at:])
}

// progressed reports whether p, on its way to the node, is nearer to it than when this was called
// last. end counts bytes of frames, and the socket's counters those of TLS records around them.
// So the place of the ping in the socket is read once all up to end was written: it is there, or
// earlier. A ping that was acknowledged cannot get any nearer, whatever else is.
func (l *Link) progressed(nc net.Conn, p *ping) bool {
	sent, acked, ok := sentOver(nc)
	l.mu.Lock()
	written := l.nc == nc && l.written >= p.end
	l.mu.Unlock()
	if !ok || p.last > 0 && acked >= p.last {
		return false // it has arrived, or that is unknown
	}
	if written && p.last == 0 {
		p.last = sent
		if acked >= sent {
			return false
		}
	}
	moved := acked > p.acked
	p.acked = acked
	return moved
}
