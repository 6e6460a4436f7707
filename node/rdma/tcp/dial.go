package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/farkv/farkv/node/rdma"
)

// dial makes a connection for one purpose. The context bounds it until the node has let it in.
func dial(ctx context.Context, addr string, s Security, h hello) (net.Conn, welcome, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, welcome{}, fmt.Errorf("call node at %s: %w: %w", addr, rdma.ErrNodeDown, err)
	}
	if t, ok := raw.(*net.TCPConn); ok {
		t.SetNoDelay(true)
		t.SetWriteBuffer(socketBytes)
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	nc := raw
	if s.TLS != nil {
		cfg := s.TLS
		if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
			host, _, err := net.SplitHostPort(addr)
			if err == nil {
				cfg = cfg.Clone()
				cfg.ServerName = host
			}
		}
		nc = tls.Client(raw, cfg)
	}
	w, err := greet(nc, s, h)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		if v := new(VersionError); errors.As(err, &v) {
			v.Peer = "node " + addr // as its user calls it
			return nil, welcome{}, v
		}
		return nil, welcome{}, fmt.Errorf("call node at %s: %w", addr, downUnless(err))
	}
	return nc, w, nil
}

// downUnless makes an error one that says that the node is down, unless it says better what is
// wrong.
func downUnless(err error) error {
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

// unlinked returns why a link is down, for the link's users. To them the node is down, whatever it
// said: that it is full, or does not know a token, is no answer to a verb. Only the end of the
// fabric itself is told apart.
func unlinked(err error) error {
	if errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %v", rdma.ErrNodeDown, err)
}
