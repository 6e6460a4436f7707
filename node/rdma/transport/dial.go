package transport

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/farkv/farkv/node/rdma"
)

// Dial makes a connection for one purpose. The context bounds it until the node has let it in.
// When it returns an error the node may have let the caller in for a moment: it finds the
// connection closed. The caller owns the connection. It has no deadline, and nothing is in flight
// on it.
//
// Errors wrap rdma.ErrNodeDown, unless they say better what is wrong: see DownUnless. One of
// another version is a VersionError.
func Dial(ctx context.Context, addr string, s Security, h Hello) (net.Conn, Welcome, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, Welcome{}, fmt.Errorf("call node at %s: %w: %w", addr, rdma.ErrNodeDown, err)
	}
	if t, ok := raw.(*net.TCPConn); ok {
		t.SetNoDelay(true)
		// Link.Done relies on it: what inlineBytes lets through fits the buffer.
		t.SetWriteBuffer(socketBytes)
	}
	// It is what ends a greeting that hangs.
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	nc := raw
	if s.TLS != nil {
		cfg := s.TLS
		if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
			host, _, err := net.SplitHostPort(addr)
			if err == nil {
				// s.TLS is shared by all links. The certificate has to be that of the host which
				// was dialed.
				cfg = cfg.Clone()
				cfg.ServerName = host
			}
		}
		nc = tls.Client(raw, cfg)
	}
	w, err := greet(nc, s, h)
	// The context ended as the node let the caller in: raw is closed by then, or is about to be.
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		if v := new(VersionError); errors.As(err, &v) {
			v.Peer = "node " + addr // as its user calls it
			return nil, Welcome{}, v
		}
		return nil, Welcome{}, fmt.Errorf("call node at %s: %w", addr, DownUnless(err))
	}
	return nc, w, nil
}

// DownUnless makes an error one that says that the node is down, unless it says better what is
// wrong.
func DownUnless(err error) error {
	for _, known := range []error{
		rdma.ErrNodeDown, rdma.ErrAccess, rdma.ErrFull, rdma.ErrHeld, rdma.ErrClosed, rdma.ErrStale, ErrProtocol,
		ErrToken, ErrConnections,
	} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", rdma.ErrNodeDown, err)
}

// unlinked returns why a link is down, for the link's users. To them the node is down, whatever
// it said: that it is full, or does not know a token, is no answer to a verb. Only the end of the
// fabric itself is told apart. err is in the text then, and not wrapped, so that no caller takes
// its status for that of a verb.
func unlinked(err error) error {
	if errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %v", rdma.ErrNodeDown, err)
}

// NewID returns a name that nothing else has. It has at least 128 random bits in 26 characters,
// fewer than the 64 that a node takes as the name of a process.
func NewID() string { return rand.Text() }

// PID is this process's. It names the process to operators, and decides nothing.
var PID = os.Getpid()

// ErrConnections is wrapped when a node has as many connections as it takes. The process may try
// again: places become free.
var ErrConnections = errors.New("the node has as many connections as it takes")
