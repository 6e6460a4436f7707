package sim

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Hardware describes the machines of a cluster. Every part of it that messages pass serves them one
// after the other, at its rate, and is idle in between; what a field leaves at zero costs nothing.
// One message a verb and direction.
//
// A verb takes, when nothing is in its way: Doorbell and Verb at the worker's CPU; the request's
// bytes on the link; Propagation; for READs and atomics, PCIe; the answer's bytes on the link;
// Propagation; Poll. A WRITE is answered before it is in the node's memory (Rowan 2.2), so it does
// not wait for PCIe.
type Hardware struct {
	// ClientsPerNode is how many clients share a compute node and its NIC; 1 by default. Tasks are
	// on their client's.
	ClientsPerNode int
	// ComputeNodes deals clients to that many compute nodes in turn. 0 fills one compute node after
	// the other, in the order in which clients begin. When all are full, more machines of the same
	// kind are added.
	ComputeNodes int

	// LinkGbps is the data rate of a NIC's port in Gbit/s, in each direction; of payload and
	// headers.
	LinkGbps float64
	// Header is what a packet carries beside its payload and the verb's own headers, in bytes, and
	// MTU the payload of one.
	Header, MTU int
	// Propagation is one way through both NICs, the wire and the switch, beside what the rates
	// below add.
	Propagation time.Duration
	// Loss is the share of messages that get lost once. A lost message costs RetransmitTimeout, and
	// so it costs what is behind it on the same connection.
	Loss              float64
	RetransmitTimeout time.Duration

	// ClientMops and NodeMops bound the verbs that a compute node's NIC sends and a memory node's
	// NIC serves, in million a second.
	ClientMops, NodeMops float64

	// PersistMops bounds what a memory node's NIC serves of verbs with a READ behind them that sees
	// them into memory, in million a second: APPENDs, and WRITEs with a READ of at most a word
	// behind them on their connection. 0: each is two verbs.
	PersistMops float64

	// PCIe is how long a node's NIC waits for a word of the node's memory, and PCIeGbps the rate of
	// payload between the two, in each direction.
	PCIe     time.Duration
	PCIeGbps float64

	// Atomics of a node in million a second: all together, and those on one word. The Device ones
	// are for words in the NIC's own memory (Options.Device), which needs no PCIe either.
	AtomicMops, AtomicWordMops float64
	DeviceMops, DeviceWordMops float64
	// DeviceBytes is how much memory of its own a node's NIC has; 0: none for use. It is for
	// callers that set Options.Device.
	DeviceBytes uint64
	// DeviceFence says that a fence does not stall behind atomics on device memory: the NIC
	// executes them itself when their turn comes, ahead of what is behind them. Elsewhere it waits
	// for their answers.
	DeviceFence bool

	// What a worker's CPU spends: for each doorbell (one a node and post), for each verb in it, and
	// for each completion that a Wait finds. The worker cannot post earlier.
	Doorbell, Verb, Poll time.Duration
	// Cores of a compute node, 0: enough. When more workers are on one, two share a core as
	// hyper-threads do: each of them runs at HyperSpeed, a part of the core's speed.
	Cores      int
	HyperSpeed float64

	// NTStore is how long a core of a node takes to write some bytes of its memory past the caches,
	// with a fence behind them, while the modules are idle (Options.PMem).
	NTStore time.Duration

	// Direct says that a worker that runs on a node (Sim.GoAt) reaches its memory by loads and
	// stores: a WRITE to it takes the worker's core NTStore, and until modules have it; a READ
	// takes their latency, and no core. Both are part of what ServiceTime is fitted to. Without it,
	// such verbs go by the NIC, as others do.
	Direct bool

	// NodeCores serve a node's two-sided calls, each for ServiceTime, one at a time; 1 by default.
	// CallLatency is what else a call takes at the node, beside the network: interrupts, wake-ups,
	// the way through its kernel. A worker that runs on the node (Sim.GoAt) spends ServiceTime on
	// each message that it receives, or Poll if that is more. PeerTime is that for a message from a
	// worker of another node, if it is less.
	NodeCores                          int
	ServiceTime, CallLatency, PeerTime time.Duration
}

// Headers of verbs in bytes, from the InfiniBand architecture specification, volume 1, chapter 9:
// RDMA extended transport header, acknowledgement, atomic request and answer, and that of a
// message's own words in a call.
const (
	readHeader    = 16
	ackHeader     = 4
	atomicHeader  = 28
	atomicAnswer  = 12
	callMessage   = 64 // a Request: procedure, identity and six words
	defaultMTU    = 4096
	hotWords      = 4096 // how many words' atomics a node tells apart; our choice: enough that few meet by chance
	psPerNs       = 1000
	psPerMopsUnit = 1e6 // a million a second is one a microsecond
)

// timing is Hardware in the model's units: picoseconds, since a small message passes a link in less
// than 10 ns. Fields without a unit are ps: of one verb, one atomic, or, as linkByte and pcieByte,
// one byte. 0 takes no time, which is what a rate of 0 becomes.
type timing struct {
	Hardware
	clientVerb, nodeVerb int64
	// nodePersist is of an APPEND, or of a WRITE with the READ behind it that sees it into memory.
	// It is at least nodeVerb: served charges the READ what is left of it.
	nodePersist        int64
	linkByte, pcieByte float64
	atomic, atomicWord int64
	device, deviceWord int64
	prop, pcie         int64 // ns
	// peer is at most service.
	service, peer          int64 // ns
	doorbell, verb, poll   int64 // ns
	ntStore                int64 // ns
	retransmit, callExtras int64 // ns
}

// newTiming converts h, and fills in its defaults. It copies h, so that a profile's Hardware can be
// that of many simulations.
func newTiming(h *Hardware) *timing {
	// each returns the time of one at a rate of so many million a second.
	each := func(mops float64) int64 {
		if mops <= 0 {
			return 0
		}
		return int64(psPerMopsUnit / mops)
	}
	// byteOf returns the time of a byte at a data rate.
	byteOf := func(gbps float64) float64 {
		if gbps <= 0 {
			return 0
		}
		return 8 * psPerNs / gbps
	}
	t := &timing{Hardware: *h}
	t.ClientsPerNode, t.NodeCores = max(t.ClientsPerNode, 1), max(t.NodeCores, 1)
	if t.MTU <= 0 {
		t.MTU = defaultMTU
	}
	t.clientVerb, t.nodeVerb = each(h.ClientMops), each(h.NodeMops)
	t.nodePersist = 2 * t.nodeVerb
	if h.PersistMops > 0 {
		t.nodePersist = max(each(h.PersistMops), t.nodeVerb)
	}
	t.linkByte, t.pcieByte = byteOf(h.LinkGbps), byteOf(h.PCIeGbps)
	t.atomic, t.atomicWord = each(h.AtomicMops), each(h.AtomicWordMops)
	t.device, t.deviceWord = each(h.DeviceMops), each(h.DeviceWordMops)
	t.prop, t.pcie, t.service = int64(h.Propagation), int64(h.PCIe), int64(h.ServiceTime)
	t.peer = t.service
	if h.PeerTime > 0 {
		t.peer = min(t.service, int64(h.PeerTime))
	}
	t.doorbell, t.verb, t.poll = int64(h.Doorbell), int64(h.Verb), int64(h.Poll)
	t.ntStore = int64(h.NTStore)
	t.retransmit, t.callExtras = int64(h.RetransmitTimeout), int64(h.CallLatency)
	return t
}

// wire returns the bytes of a verb's, or a call's, request and answer on the link. A message of
// several packets has a header for each. An op of nil is a call. A masked compare and swap counts
// as a plain one: the bytes of its masks are left out.
func (t *timing) wire(op *rdma.Op) (request, answer int) {
	if op == nil {
		return t.Header + callMessage, t.Header + callMessage
	}
	n := op.Len()
	packets := max((n+t.MTU-1)/t.MTU, 1)
	switch op.Verb {
	case rdma.Read:
		return t.Header + readHeader, packets*(t.Header+ackHeader) + n
	case rdma.Write:
		return packets*t.Header + readHeader + n, t.Header + ackHeader
	case rdma.Send:
		return packets*t.Header + n, t.Header + ackHeader
	case rdma.Append: // a SEND, and a READ of one byte
		// The byte is padded to a word of 4, as payloads are.
		return packets*t.Header + n + t.Header + readHeader, 2*(t.Header+ackHeader) + 4
	}
	return t.Header + atomicHeader, t.Header + atomicAnswer
}

// onLink is how long n bytes take on a link, in ps.
func (t *timing) onLink(n int) int64 { return int64(float64(n) * t.linkByte) }

// onPCIe is how long n bytes of payload take between a node's NIC and its memory, in ps.
func (t *timing) onPCIe(n int) int64 { return int64(float64(n) * t.pcieByte) }

// resource serves one message after the other. It has no queue of its own. What waits is told, when
// it comes, until when. So messages have to pass it in the order in which they come to it.
type resource struct {
	busy int64 // ps: when it has served everything so far
	used int64 // ps: how long it served
}

// pass returns when a message is through that would be at time t (ns), were the resource idle, and
// takes service (ps). So idle resources cost no time here: what a message takes at the least is
// counted once, with the way as a whole. A service of 0 delays nothing: the resource stays one that
// was never used. The time is rounded up to a ns.
func (r *resource) pass(t, service int64) int64 {
	if r.used == 0 { // it was idle for ever, not since 0
		r.busy = t * psPerNs
	} else {
		r.busy = max(t*psPerNs, r.busy+service)
	}
	r.used += service
	return (r.busy + psPerNs - 1) / psPerNs
}

// spent returns how long it served until now (ns). What it still has to serve lies ahead. It is
// exact when all has been served. Before, it takes the time from now to busy for service without a
// gap.
func (r *resource) spent(now int64) time.Duration {
	return time.Duration((r.used - max(0, r.busy-now*psPerNs)) / psPerNs)
}

// port is a machine's NIC with its link.
type port struct {
	// unit is the NIC's part that handles messages, at ClientMops or NodeMops. in and out are the
	// two directions of the link, seen from the machine.
	unit, in, out     resource
	messages          uint64
	bytesIn, bytesOut uint64
}

// machine is a compute node, or what a memory node is to workers that run on it.
type machine struct {
	// port is a compute node's own. That of workers on a memory node is the node's, so that what
	// they send competes with what the node serves.
	*port
	number int   // of a compute node
	cpu    int64 // ns that its workers' CPUs spent on verbs
	// workers counts all that ever began here; no seat is given again.
	workers int
}

// board is what a memory node has beside its port.
type board struct {
	port
	// fetch carries what READs return, and store what verbs write: payload alone, at PCIeGbps.
	fetch, store resource // PCIe, from memory and to it
	// An atomic passes atomics, or device if its word is in the NIC's memory, and then the entry of
	// words that its address is hashed to. words is made at the node's first atomic.
	atomics resource
	device  resource
	words   []resource // atomics on one word, by its address
	// cores serve calls, NodeCores of them. Workers that run on the node have cores of their own
	// (core).
	cores []resource
	// host is what workers that run on the node are on; nil without Options.Hardware.
	host *machine
}

// NodeUsage is the use of one machine's parts.
type NodeUsage struct {
	// Node is a memory node's number, or, with Compute, a compute node's in the order in which
	// clients filled them.
	Node    int
	Compute bool

	Messages          uint64 // verbs and calls that its NIC sent (Compute) or served
	BytesIn, BytesOut uint64 // on its link, headers and all

	// How long each part was busy since the beginning. Divided by virtual time that is its
	// utilisation; CPU's by Cores, too.
	NIC, LinkIn, LinkOut     time.Duration
	PCIeIn, PCIeOut, Atomics time.Duration // memory nodes
	CPU                      time.Duration // calls at a memory node; posting and polling at a compute node
	Cores                    int           // at a compute node, its workers
}

// Usage returns what was used since the beginning: the memory nodes' in order, then the compute
// nodes'. All is zero without Options.Hardware.
func (s *Sim) Usage() []NodeUsage {
	list := make([]NodeUsage, 0, len(s.nodes)+len(s.cards.machines))
	for i := range s.nodes {
		b := &s.nodes[i].board
		// WRITEs go in over PCIe, by store; READs out, by fetch.
		u := b.usage(s.now())
		u.Node, u.Cores = i, len(b.cores)
		u.PCIeIn, u.PCIeOut = b.store.spent(s.now()), b.fetch.spent(s.now())
		u.Atomics = b.atomics.spent(s.now()) + b.device.spent(s.now())
		for k := range b.cores {
			u.CPU += b.cores[k].spent(s.now())
		}
		if b.host != nil {
			u.CPU += time.Duration(b.host.cpu)
		}
		list = append(list, u)
	}
	for i, m := range s.cards.machines {
		u := m.usage(s.now())
		u.Node, u.Compute, u.CPU, u.Cores = i, true, time.Duration(m.cpu), m.workers
		list = append(list, u)
	}
	return list
}

// usage returns what compute nodes and memory nodes have in common.
func (p *port) usage(now int64) NodeUsage {
	return NodeUsage{
		Messages: p.messages, BytesIn: p.bytesIn, BytesOut: p.bytesOut,
		NIC: p.unit.spent(now), LinkIn: p.in.spent(now), LinkOut: p.out.spent(now),
	}
}
