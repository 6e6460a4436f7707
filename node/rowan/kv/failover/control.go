package failover

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv/digest"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// control is the task that receives: it gives the log segments, has used segments digested, and
// finds out which of them are committed (sections 4.3 and 4.4). It also follows the configuration,
// and promotes the server's shards (section 4.5).
type control struct {
	s  *state.Server
	ep rdma.Endpoint
	// The logs in which other servers append, and what digests them.
	// Only this task calls its methods.
	in digest.Inbound
	d  *digest.Digester
	// What tells which versions are on all replicas.
	commits *digest.CommitVers
	// What an earlier server left in own logs that go on, until it is on all replicas.
	resumed []digest.Segment
	// There is something to do, or was in the last step.
	busy bool

	peer *rpc.Peer
	// The server's side of the configuration protocol. It calls control's methods of cm.Store.
	cm *cm.Server
	// When the last term was adopted.
	adoptedAt time.Duration
	// The last term in which all entries of earlier terms are digested.
	settled uint64
	// The last term in which the exchanger was handed what other replicas may not have.
	gave uint64
	// The last term in which the server serves all shards of which it is the primary.
	promoted uint64
	// An error of a method that cannot return one.
	err error
}

// newControl returns a control that has done nothing.
func newControl(s *state.Server, ep rdma.Endpoint, in digest.Inbound, configs rdma.Configs) *control {
	c := &control{s: s, ep: ep, in: in, commits: digest.NewCommitVers(s, ep)}
	c.d = digest.New(s, ep, in, c.commits)
	c.cm = cm.NewServer(ep, configs, s.Node, c)
	return c
}

// Run is the task of control. It calls startOthers, which starts the server's other tasks, once
// the indexes name what an earlier server left.
func Run(s *state.Server, ep rdma.Endpoint, configs rdma.Configs, startOthers func(rdma.Endpoint)) error {
	// The rings are open from here on, but have no segments before the first Step.
	in, err := digest.NewInbound(s, ep)
	if err != nil {
		return err
	}
	c := newControl(s, ep, in, configs)
	c.peer, err = rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Node: s.Node, Number: s.Opt.Boxes}})
	if err != nil {
		return err
	}
	// The manager asks by this mailbox, and gets its answers from this task alone.
	defer c.peer.Close()
	// So that Step reads the registers even if the manager does not ask.
	c.cm.Told(1)
	if err = c.recover(); err == nil {
		startOthers(ep)
	}
	// Segments ahead are filled while the task sleeps: see Options.StepEvery.
	l := s.NewLull(ep, s.Opt.StepEvery)
	for err == nil && !s.Tasks.Stopping() {
		if err = c.step(); err == nil {
			ep.Sleep(l.Next(c.d.Moved() || c.busy))
		}
	}
	// It releases the READs that are in flight.
	c.commits.Hear()
	// Nothing lands in the node's logs any more.
	if e := in.Close(); err == nil {
		err = e
	}
	if err != nil {
		// The other tasks end, too; the server tells the manager why in part.
		s.Tasks.End("receiver", err)
	}
	c.part()
	return nil
}

// Bounds of how long a server that has ended by itself answers the manager. partFor runs from the
// first answer: the manager may need another question to expel the node. partMost runs from the
// end, if no question comes.
const (
	partFor  = time.Second
	partMost = 10 * time.Second
)

// part tells the manager that the server has ended by itself, and why, so that the manager need
// not wait for a timeout. No other server serves its shards before its node is expelled. After
// part the node counts as if it had died.
func (c *control) part() {
	why := c.s.Tasks.Failed()
	// With these the manager knows, or cannot be told.
	for _, gone := range []error{rdma.ErrNodeDown, rdma.ErrClosed, rdma.ErrRevoked} {
		if why == nil || errors.Is(why, gone) {
			return
		}
	}
	c.cm.End(why)
	for until := c.ep.Now() + partMost; c.ep.Now() < until && !c.s.Tasks.Quitting(); {
		r, err := c.peer.Next(c.s.Opt.StepEvery)
		switch {
		case errors.Is(err, rdma.ErrTimeout) || r == nil && err == nil:
		case err != nil:
			return // the server cannot reach its node any more
		case r.Proc != cm.Ask:
			r.Drop()
		case c.cm.Handle(r) == nil:
			until = min(until, c.ep.Now()+partFor)
		}
	}
}

// step does one round of all that the task does. Entries that it looked up are out of its hands at
// the end, so it passes the question that it saw at the beginning.
func (c *control) step() error {
	// Questions that come in the midst of the step wait for the next one.
	question := c.s.Quiet.Last()
	c.busy = false
	// Progress of senders counts from here on.
	c.d.Moved() // in an earlier step
	if err := c.configure(); err != nil {
		return err
	}
	// Cleaners have no part in inbound logs, so they hand segments of these over.
	for _, seg := range c.s.Space.Given() {
		c.in.Free(seg)
		c.busy = true
	}
	// Promotion needs the indexes as they are after all used segments.
	if err := c.d.Step(); err != nil {
		return err
	}
	if err := c.promote(); err != nil {
		return err
	}
	// Behind promotion, which reads words of its own term alone.
	if err := c.commits.Step(c.d.Waits()); err != nil {
		return err
	}
	if err := c.d.Commit(); err != nil {
		return err
	}
	// What was looked up in this step has been used.
	c.s.Quiet.Pass(c.s.Opt.ReceiverReader(), question)
	return nil
}

// configure answers the manager's questions, and goes on with new terms. If registers cannot be
// read now, that is tried again.
func (c *control) configure() error {
	// If clients know a later term, Step reads the registers.
	c.cm.Told(c.s.Known.Highest())
	for {
		// Whatever has arrived by now, without waiting.
		r, err := c.peer.Next(0)
		if errors.Is(err, rdma.ErrTimeout) || r == nil && err == nil {
			break
		}
		if err != nil {
			return err
		}
		if r.Proc != cm.Ask {
			r.Drop()
			continue
		}
		c.busy = true
		if err := c.cm.Handle(r); err != nil && !errors.Is(err, rdma.ErrUnreachable) {
			return err
		}
	}
	if err := c.cm.Step(); err != nil && !errors.Is(err, rdma.ErrUnreachable) {
		return err
	}
	// Tasks join the view before they post anything: see state.Server.Member.
	c.s.Known.Join(c.cm.Epoch())
	return c.err
}
