package memnode

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// grant gives a peer a lease, unless the peer was expelled. It keeps no note of the lease: the
// caller of expel waits for the longest that it may be. The error wraps rdma.ErrRevoked. It is
// called for a connection of the peer, over which nothing else is asked. The lease begins on the
// peer's clock when it asked, which was earlier: see package membership.
func (p *pool) grant(peer int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.serving.Grant(peer) {
		return fmt.Errorf("node %d was expelled: %w", peer, rdma.ErrRevoked)
	}
	return nil
}

// keepLease asks the peers for leases as long as the node has the pool. The caller holds Node.mu,
// so that the node does not close meanwhile. Witnesses among the voters grant leases as the others
// do. A node that is no voter needs a majority of the voters, too.
//
// Each node of a pool asks each voter for leases, over a connection for peers:
//
//	node  -> voter   DoLease   about five times in a lease
//	voter -> node    OK, or rdma.ErrRevoked once it has promised to grant the node none
//
// The node may serve while a majority of the voters, with itself if it is one, has answered OK to
// questions that it asked less than a lease ago. See membership.ServingLease.
func (p *pool) keepLease() {
	for peer := range p.record.Voters() {
		if peer != p.record.Index {
			p.node.group.Go(func() { p.askPeer(peer) })
		}
	}
}

// askPeer asks one peer for leases, a few times in each. One that does not answer costs nothing but
// its vote. It has one question at a time on its connection. After any failure it makes another
// connection, so that no late answer is taken for that to a later question. The interval is a fifth
// of a lease: a few questions or answers may be lost before the lease ends. It asks sooner while
// the peer fails. It ends with the pool, or the node.
func (p *pool) askPeer(peer int) {
	every, soon := p.record.Lease/5, min(p.record.Lease/5, 25*time.Millisecond)
	var c net.Conn
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	var silent quiet
	for {
		pause, err := every, error(nil)
		switch {
		case p.cutFrom(peer):
			err = errCut
		case c == nil:
			c, err = p.callPeer(peer)
		}
		if err == nil {
			err = p.ask(c, peer)
		}
		p.note(&silent, peer, err)
		if err != nil {
			pause = soon // it may be about to have the pool, too
			if c != nil {
				c.Close()
				c = nil
			}
		}
		select {
		case <-p.gone:
			return
		case <-p.node.stop:
			return
		case <-time.After(pause):
		}
	}
}

// quiet is for how long a peer has granted nothing. It belongs to the goroutine that asks the peer.
type quiet struct {
	since  time.Duration // 0: it does
	logged bool
}

// note logs once that a peer has granted nothing for as long as a lease lasts, and why, and that it
// does again. A node can serve without that peer, and an operator should know before another one
// fails.
func (p *pool) note(q *quiet, peer int, err error) {
	log, addr := p.node.log, p.record.Addresses[peer]
	switch now := realtime.Now(); {
	case err == nil:
		if q.logged {
			log.Info("a peer grants leases again", "pool", p.record.ID, "peer", peer, "address", addr)
		}
		*q = quiet{}
	case q.since == 0:
		q.since = now
	case !q.logged && now-q.since > p.record.Lease:
		q.logged = true
		log.Warn("a peer grants no leases (logged once)", "pool", p.record.ID, "peer", peer, "address",
			addr, "why", err.Error())
	}
}

// patience bounds the wait for a peer: an answer that comes later gives no lease that lasts.
func (p *pool) patience() time.Duration { return min(p.record.Lease, transport.DeadAfter) }

// callPeer connects to a peer as this node, with the full token. It blocks for patience at most.
// The peer lets it in only while it is in the same pool, at the number that is called, and knows of
// no expulsion of its own. The new connection replaces an earlier one of this node there.
func (p *pool) callPeer(peer int) (net.Conn, error) {
	s := p.node.cfg.Security
	if s.TLS != nil {
		s.TLS = peerTLS(s.TLS)
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.patience())
	defer cancel()
	c, _, err := transport.Dial(ctx, p.record.Addresses[peer], s, transport.Hello{
		Purpose: transport.ForPeer, Process: fmt.Sprintf("peer %x",
			p.node.incarnation.Load()), PID: transport.PID, Pool: p.record.ID,
		Node: peer, Peer: p.record.Index,
	})
	return c, err
}

// peerTLS returns how a node calls its peers: with its own certificate. It trusts the authorities
// that the node would trust as a client, or else those for its clients. A node's certificate has to
// be good for a client, too, where its peers ask for one. What is set per connection, by
// GetConfigForClient, is asked for at each call, so that certificates can be renewed.
func peerTLS(s *tls.Config) *tls.Config {
	if s.GetConfigForClient != nil {
		if now, err := s.GetConfigForClient(nil); err == nil && now != nil {
			s = now
		}
	}
	c := &tls.Config{
		Certificates: s.Certificates, RootCAs: s.RootCAs, MinVersion: tls.VersionTLS13,
	}
	if c.RootCAs == nil {
		c.RootCAs = s.ClientCAs
	}
	return c
}

// ask asks for one lease. It counts from before the question was sent. A peer that gives none knows
// that this node was expelled, or has another pool by now. The time is read, and the round begun,
// before the question leaves: see ServingLease.Ask. Each question is a round of its own, since the
// peers are asked by goroutines of their own. The error ends the connection: see askPeer. It wraps
// rdma.ErrRevoked when the peer has promised to grant no lease any more, which is noted: see
// disowned.
func (p *pool) ask(c net.Conn, peer int) error {
	// A round that no peer answers changes nothing but the node's own grant.
	p.mu.Lock()
	round := p.serving.Ask(realtime.Boot())
	p.mu.Unlock()
	c.SetDeadline(time.Now().Add(p.patience()))
	if err := transport.WriteMessage(c, transport.KindControl, transport.StatusOK,
		control.Message{Do: control.DoLease}); err != nil {
		return err
	}
	var r control.Reply
	st, err := transport.ReadMessage(c, transport.KindControl, maxControl, &r)
	if err != nil {
		return err
	}
	if st != transport.StatusOK {
		if st == transport.StatusRevoked {
			p.disowned(peer)
		}
		return &transport.Refused{Status: st, Text: r.Text}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The lease counts from when this round began, however late the answer is read.
	p.serving.Granted(peer, round)
	until := p.serving.Until()
	p.until.Store(int64(until)) // 0 once it was expelled
	// A majority grants leases, so that the node was not expelled while it was away.
	if until > 0 {
		p.returned.Store(false)
	}
	return nil
}
