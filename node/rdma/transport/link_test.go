package transport

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// TestNodeProves calls a node that does not know the token: one that gives no proof, and one that
// gives the caller's.
func TestNodeProves(t *testing.T) {
	for name, proof := range map[string]func(h *Hello) []byte{
		"none": func(*Hello) []byte { return nil }, "the caller's": func(h *Hello) []byte { return h.Proof },
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			ours.SetDeadline(time.Now().Add(20 * time.Second))
			go func() {
				defer theirs.Close()
				mine, h := NewGreeting(), Hello{}
				io.ReadFull(theirs, make([]byte, GreetingBytes))
				theirs.Write(mine[:])
				if _, err := ReadMessage(theirs, KindHello, MaxHello, &h); err == nil {
					WriteMessage(theirs, KindHello, StatusOK, Welcome{Key: 1, Proof: proof(&h)})
				}
			}()
			if w, err := greet(ours, Security{Token: []byte("a token of twenty bytes")}, Hello{}); !errors.Is(err,
				ErrToken) {
				t.Errorf("a node that does not know the token is believed: %+v, %v", w, err)
			}
		})
	}
}

// TestPostNeverWrites has others add more to what a worker writes than a socket takes: it leaves
// that to the link.
func TestPostNeverWrites(t *testing.T) {
	l := NewLink("nowhere", Security{}, Hello{}, nil)
	ours, theirs := net.Pipe() // theirs is not read
	defer theirs.Close()
	defer ours.Close()
	l.nc = ours
	l.stream.Store(newStream(ours))
	l.out, l.bytes, l.writing = make([]byte, inlineBytes+1), inlineBytes+1, true
	done := make(chan struct{})
	go func() { l.Flush(); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("a worker writes more than a node that reads nothing can take")
		ours.Close()
		<-done
	}
}

// breaking is a connection that ends with its first Write. Then there is another one, on which more
// is to be written.
type breaking struct {
	counting
	l    *Link
	next *counting
}

func (b *breaking) Write(p []byte) (int, error) {
	if n, _ := b.counting.Write(p); b.writes > 1 {
		return n, nil
	}
	b.l.mu.Lock()
	defer b.l.mu.Unlock()
	b.l.nc, b.l.out = b.next, make([]byte, 1)
	return 0, net.ErrClosed
}

func (b *breaking) Close() error { return nil }

type counting struct {
	net.Conn
	writes int
}

func (c *counting) Write(p []byte) (int, error) {
	c.writes++
	return len(p), nil
}

// TestPostEndsWithItsConnection breaks the connection to which a worker writes: what is for the
// next one it leaves to the link. Each may take long, that to a node of the process which has no
// lease.
func TestPostEndsWithItsConnection(t *testing.T) {
	l := NewLink("nowhere", Security{}, Hello{}, nil)
	next := new(counting)
	first := &breaking{l: l, next: next}
	l.nc, l.out, l.writing = first, make([]byte, 1), true
	l.stream.Store(newStream(first))
	l.Flush()
	if first.writes != 1 || next.writes > 0 || len(l.heavy) != 1 {
		t.Errorf("a worker writes %d times to a connection, %d times to the next one, and leaves it to the link "+
			"%d times, want 1, 0, 1", first.writes, next.writes, len(l.heavy))
	}
}

// TestQueueIsBounded begins a frame for a node that has left as much unread as may wait. It is
// refused, before the node counts as down for its silence: how long that takes to be noticed bounds
// nothing.
func TestQueueIsBounded(t *testing.T) {
	l := NewLink("nowhere", Security{}, Hello{}, nil)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	defer ours.Close()
	l.nc, l.out = ours, make([]byte, mostQueued)
	s, err := l.Begin()
	if err != nil {
		t.Fatalf("as much as may wait: %v", err)
	}
	s.l.out = append(s.l.out, 0)
	s.l.mu.Unlock()
	if _, err := l.Begin(); !errors.Is(err, rdma.ErrNodeDown) || !strings.Contains(err.Error(), "reads nothing") {
		t.Errorf("more than may wait: %v", err)
		l.mu.Unlock()
	}
}
