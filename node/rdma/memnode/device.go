package memnode

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Device is an RNIC in a memory node. It executes verbs on the node's memory past the node's
// process. The process decides which workers it serves: connections are made, and ended, over this
// package's protocol. Everything else of a pool is as without a device. What a device executes is
// not answered by the node. So a client of such a pool asks the node by serve frames for how long
// it serves, and takes nothing for true that completed later.
//
// A connection of a worker to the memory: the worker's process asks for it by an attach frame with
// what its device offers, the node has its device connect, and answers what that has to know. From
// then on verbs go from device to device. The node ends the connection when its worker may not post
// any more, and waits until its device has ended it: see session.detach.
type Device interface {
	// Fabric names the fabric that the device's verbs go over, as Record.Fabric and in addresses.
	Fabric() string
	// Register lets the device use size bytes at base, until the registration is closed.
	Register(base unsafe.Pointer, size uint64) (Registration, error)
}

// Registration is memory of a node that a Device serves.
type Registration interface {
	// Connect connects a client's worker by what it offers, and returns what it has to know, and
	// how to end it. It is called under a session's executing, and so may be called for several
	// sessions at a time. An answer is control.MaxOffer bytes at most.
	Connect(offer []byte, readOnly bool) (answer []byte, c DeviceConn, err error)
	// CompareSwap and FetchAdd are as in rdma.Memory: for the node's procedures, since a
	// processor's atomics are not atomic with those of a device.
	CompareSwap(off, expect, value uint64) uint64
	FetchAdd(off, n uint64) uint64
	// Close ends the registration; all connections were ended before.
	Close() error
}

// DeviceConn is a worker's connection to a node's memory.
type DeviceConn interface {
	// End ends it. When it returns, none of the verbs that were posted to the connection is being
	// executed, or ever will be. It is called once for each connection, under the executing of its
	// session, which a fence waits for.
	End()
}

// RingRegistration is a Registration of a Device that has rings.
type RingRegistration interface {
	Registration
	// OpenRing opens a ring without buffers, of which it is told the longest block of the pool's.
	// Options were checked.
	OpenRing(o rdma.RingOptions, mtu int) (DeviceRing, error)
}

// DeviceRing is a ring at a node's device. It is safe for concurrent use. Post and Count are as of
// rdma.Ring.
type DeviceRing interface {
	Post(buffers []rdma.Span) error
	Count() rdma.RingCount
	// Connect connects a sender's worker to a stream, by what it offers, as Registration.Connect.
	// The error wraps rdma.ErrNoRing when the ring has ended.
	Connect(stream int, offer []byte) (answer []byte, c RingConn, err error)
	// Close ends the ring, and all connections to it: when it returns nothing lands any more.
	Close()
}

// RingConn is a sender's connection to a stream of a ring.
type RingConn interface {
	DeviceConn
	// Landed returns how many blocks have landed over it, and whether it was ended, with its ring
	// or by End: then no more will.
	Landed() (blocks uint64, ended bool)
}

// owner identifies a worker that has a connection to the node's memory. Another life of the same
// client is another worker.
type owner struct {
	client rdma.ClientID
	life   uint64
}

// mostPeeks is how many connections without an identity a process may have to a node's memory
// beyond those of all clients. Readers share identity 0, and differ by their lives.
const mostPeeks = 4

// mostRingConns is how many connections to rings a process may have at a node: one for each of its
// workers, each ring and stream that it appends to.
const mostRingConns = 1 << 12

// target is where a worker's connection goes: to a stream of a ring; ring 0 is the node's memory.
type target struct {
	owner
	ring, stream uint32
}

// attachment is a worker's connection to the node's memory, or to a ring.
type attachment struct {
	// rights are those of the frame by which it was made: detach holds them against the fence.
	rights transport.Rights
	conn   DeviceConn
}

// attach executes an attach frame. The caller holds s.executing, and with it s.attached: a fence
// that comes behind finds the connection, and one that came before is seen here. The error is a
// breach. What the node or the device refuses is answered with a status and a text. The answer's
// items tell how long the text or the device's answer is, without its padding.
func (s *session) attach(h transport.Header, p []byte) error {
	least := transport.RightsBytes
	if h.Items >= control.AttachRing {
		least += control.TargetBytes
	}
	if len(p) < least || len(p) > least+control.MaxOffer {
		return fmt.Errorf("attach with %d bytes: %w", len(p), transport.ErrProtocol)
	}
	r := transport.ParseRights(p)
	s.out = append(s.out, make([]byte, transport.HeaderBytes)...)
	from := len(s.out)
	to, p := target{owner: owner{r.Client, r.Life}}, p[transport.RightsBytes:]
	if h.Items >= control.AttachRing {
		to.ring, to.stream = binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:])
		p = p[control.TargetBytes:]
	}
	answer, err := s.serveAttach(h.Items, &r, to, p)
	if err != nil {
		s.counters.failed(transport.StatusOf(err), 1)
		answer = []byte(err.Error())
		answer = answer[:min(len(answer), control.MaxOffer)]
	}
	s.out = append(s.out, answer...)
	for len(s.out)%8 != from%8 {
		s.out = append(s.out, ' ')
	}
	s.answer(h, transport.StatusOf(err), len(answer), from)
	return nil
}

// serveAttach executes what an attach frame asks for: a new connection in the place of the old one,
// the end of one, or only whether the worker may post. Of a ring it also asks how many blocks have
// landed. A connection that is not made leaves none: the old one has ended. offer and the answer
// are not kept.
func (s *session) serveAttach(what int, r *transport.Rights, to target, offer []byte) (answer []byte, err error) {
	if st := s.barred(r); st != transport.StatusOK {
		s.detach() // the fence may not have reached c yet: what is refused now does not land later
		return nil, st.Err()
	}
	old, ok := s.attached[to]
	if what == control.AttachRing+control.AttachAsk {
		return old.landed()
	}
	// The earlier connection has ended before there is another one: none of its verbs lands behind
	// verbs of the next one.
	if ok && what != control.AttachAsk {
		s.part(to, &old)
	}
	switch what {
	case control.AttachNew:
	case control.AttachRing + control.AttachNew:
		return s.attachRing(r, to, offer)
	default:
		return nil, nil
	}
	if s.pool.region == nil {
		return nil, fmt.Errorf("the node has no device: %w", rdma.ErrNotSupported)
	}
	// there are no more workers, unless they are readers
	if len(s.attached)-s.ringed >= s.pool.record.Clients+mostPeeks {
		return nil, fmt.Errorf("the process has %d connections to the node's memory: %w", len(s.attached)-s.ringed,
			rdma.ErrFull)
	}
	answer, dc, err := s.pool.region.Connect(offer, s.readsOnly(r))
	if err != nil {
		return nil, err
	}
	return s.attachedTo(to, r, answer, dc)
}

// attachedTo keeps a connection that was made. It ends one at once of which the device answers too
// much.
func (s *session) attachedTo(to target, r *transport.Rights, answer []byte, dc DeviceConn) ([]byte, error) {
	if len(answer) > control.MaxOffer {
		dc.End()
		return nil, fmt.Errorf("a device answers %d bytes: %w", len(answer), transport.ErrFailed)
	}
	if s.attached == nil {
		s.attached = map[target]attachment{}
	}
	s.attached[to] = attachment{*r, dc}
	if to.ring != 0 {
		s.ringed++
	}
	return answer, nil
}

// attachRing connects a worker to a ring. The error wraps rdma.ErrAccess for a reader,
// rdma.ErrNoRing, rdma.ErrNotSupported for a ring without a device, or rdma.ErrFull behind
// mostRingConns. The ring may be another session's, and end at any time: its device then ends the
// connection, and this session keeps it until the worker replaces or ends it, or is fenced off.
func (s *session) attachRing(r *transport.Rights, to target, offer []byte) ([]byte, error) {
	own := s.pool.ringAt(uint64(to.ring))
	switch {
	case s.readsOnly(r):
		return nil, rdma.ErrAccess
	case own == nil:
		return nil, rdma.ErrNoRing
	case own.device == nil:
		return nil, fmt.Errorf("the node has no device: %w", rdma.ErrNotSupported)
	case s.ringed >= mostRingConns:
		return nil, fmt.Errorf("the process has %d connections to rings: %w", s.ringed, rdma.ErrFull)
	}
	answer, rc, err := own.device.Connect(int(min(to.stream, rdma.MaxStreams)), offer)
	if err != nil {
		return nil, err
	}
	return s.attachedTo(to, r, answer, rc)
}

// part ends a connection. When it returns, none of the verbs that were posted to the connection is
// executed any more. It blocks for as long as the device takes.
func (s *session) part(to target, a *attachment) {
	a.conn.End()
	delete(s.attached, to)
	if to.ring != 0 {
		s.ringed--
	}
}

// landed answers how many blocks have landed over a connection to a ring, and whether it has ended.
// Blocks are counted up to the end of the connection. The body is blocks u64 | ended u64, 1 or 0.
func (a *attachment) landed() ([]byte, error) {
	rc, ok := a.conn.(RingConn)
	if !ok {
		return nil, rdma.ErrNoRing
	}
	blocks, ended := rc.Landed()
	over := uint64(0)
	if ended {
		over = 1
	}
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, blocks), over), nil
}

// detach ends the connections to the node's memory and rings of workers that may not post any more.
// The caller holds s.executing. A fence of an epoch ends the connections of workers that joined an
// earlier one. A worker connects again when it has joined. Devices do not look at rights: what
// keeps a worker that was fenced off from the memory is this.
func (s *session) detach() {
	for to, a := range s.attached {
		if s.ended || s.barred(&a.rights) != transport.StatusOK {
			s.part(to, &a)
		}
	}
}

// serves answers for how long yet the node may serve. It also ends what the fence that it tells of
// bars. The answer has what is left of the lease in ns, 0 without one, and the epoch that was
// fenced last: u64 each. It is vouched for as others are: a node without a lease does not answer,
// or answers once it has one again, with what was left before.
func (s *session) serves(h transport.Header) {
	s.out = append(s.out, make([]byte, transport.HeaderBytes)...)
	from := len(s.out)
	// The caller counts what is left from before it asked. So it takes the end of the lease for
	// earlier than it is.
	left := max(0, s.pool.until.Load()-int64(realtime.Boot()))
	// It is read before detach, which may see a later one: then the answer names a fence that has
	// taken effect here.
	fence := s.pool.fence.Load()
	s.detach() // a client that learns of the fence may say that what was posted before does not land later
	s.out = binary.LittleEndian.AppendUint64(s.out, uint64(left))
	s.out = binary.LittleEndian.AppendUint64(s.out, fence)
	s.answer(h, transport.StatusOK, 0, from)
}
