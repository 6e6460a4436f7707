package memnode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/node/version"
)

// lockedLog is a log that a test reads while a node writes it.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestVersions has the two ends speak other versions, of the wire and of control messages: each end
// refuses, and says the same in one line.
func TestVersions(t *testing.T) {
	for at, c := range map[int]struct {
		what string
		ours int
	}{8: {"wire", version.Wire}, 10: {"control", version.Control}} {
		t.Run(c.what, func(t *testing.T) {
			other := transport.NewGreeting()
			other[at]++
			line := func(peer, self string) string {
				return fmt.Sprintf("%s speaks %s version %d, this %s %d: use the same farkv on both", peer,
					c.what, c.ours+1, self, c.ours)
			}
			callWith(t, &other, line)
			answerWith(t, &other, line)
		})
	}
}

// callWith greets a node in another version.
func callWith(t *testing.T, other *transport.Greeting, line func(peer, self string) string) {
	log := new(lockedLog)
	n := newRawNode(t, Config{Log: slog.New(slog.NewTextHandler(log, nil))})
	c, err := net.Dial("tcp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(rawPatience))
	if _, err := c.Write(other[:]); err != nil {
		t.Fatal(err)
	}
	var theirs transport.Greeting
	if _, err := io.ReadFull(c, theirs[:]); err != nil || theirs.Check("", "") != nil {
		t.Errorf("the node does not tell its versions to a caller of another one: %v", err)
	}
	if rest, err := io.ReadAll(c); len(rest) > 0 {
		t.Errorf("the node goes on: %q, %v", rest, err)
	}
	want := line("client "+c.LocalAddr().String(), "node")
	for until := time.Now().Add(rawPatience); !strings.Contains(log.String(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the node's log has no line with %q: %s", want, log)
		}
	}
	if s := n.Stats(); s.RefusedVersion != 1 || s.Refused != 1 || s.AuthFailures != 0 {
		t.Errorf("the node counts %+v", s)
	}
}

// answerWith is a node that answers in another version.
func answerWith(t *testing.T, other *transport.Greeting, line func(peer, self string) string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.ReadFull(c, make([]byte, transport.GreetingBytes))
			c.Write(other[:])
			c.Close()
		}
	}()
	_, err = tcp.Open(control.Options{Addresses: []string{l.Addr().String()}})
	var v *transport.VersionError
	want := "open a pool: " + line("node "+l.Addr().String(), "program")
	if !errors.Is(err, transport.ErrProtocol) || !errors.As(err, &v) || err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
}
