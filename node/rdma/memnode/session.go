package memnode

import (
	"sync"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/transport"
)

// session is what a process's workers have at the node by one connection for verbs: connections to
// its memory and rings, mailboxes, and what executes their requests. It ends with the connection.
type session struct {
	// All up to outlet are set when the connection is entered, and never change. pool is nil of
	// connections for control: these execute nothing here.
	node     *Node
	pool     *pool
	readOnly bool
	number   uint64  // by which answers to its offers find it
	outlet   *outlet // to the process

	// executing is held while requests are executed. A goroutine that takes it, and finds ended
	// true or sets it, knows that no request that came over the connection is executed any more.
	// Where Node.mu is held as well, that was locked first. While executing is held nothing waits
	// for a lease or for the other end: a fence waits for executing on every connection.
	executing sync.Mutex
	// ended is under executing, and is never reset.
	ended bool
	// Connections of the process's workers to the node's memory and rings, past this one. Under
	// executing, as ringed, meets and broken are. nil until the first connection is made.
	attached map[target]attachment
	ringed   int // of these, to rings
	// pool.boxes has the same mailboxes by number. A mailbox is in both maps, or was replaced there
	// by one of a later life: see shut.
	boxes   map[owner]*box // of the process's workers, under executing
	entries []entry        // that have begun, and have no other block in flight; empty between two batches
	mailed  []*outlet      // those that got messages which have not been forwarded yet
	meets   bool           // it has made offers
	// hosts is stored under executing. pool.part loads it, and parted, without: it must not wait
	// for a frame of each connection.
	hosts  atomic.Bool   // it has mailboxes to which messages come from device to device
	parted atomic.Uint64 // the last fence of which it has ended the connections concerned
	// It goes with the connection. The worker itself posts nothing to the node any more, also over
	// the next one.
	broken map[rdma.ClientID]uint64 // lives that strayed: their connection is down

	// out begins with whole frames of answers, and ends with the one that is being made. It is the
	// own buffer of the connection, or a large one: see outputs. Only the goroutine that executes
	// touches it.
	out []byte // answers that are not sent yet
	// view and request are what a procedure gets. They are fields, so that a call allocates
	// nothing.
	view    view
	request rdma.Request // that is being executed
	// counters are added to the node's when answers are sent: see conn.flush.
	counters tally
	own      uint64 // for barriers; its cache line is not shared
}

// drain waits until the requests being executed are over, including those that a device executes
// for workers that may post no more. With end, the connection executes no requests from then on.
// When it returns, a request that is executed later finds what the caller changed before, such as a
// fence. Devices are told as well: detach ends their connections, and returns when these land
// nothing any more. It blocks for as long as the batch of frames takes that is being executed,
// which waits for no other process, but for what a procedure or a device takes.
func (s *session) drain(end bool) {
	s.executing.Lock()
	defer s.executing.Unlock()
	s.ended = s.ended || end
	s.detach()
	s.unlisten()
	if s.pool != nil {
		s.unring()
	}
}

// look lets procedures look at the pool's memory. It is called once, before the first request is
// executed.
func (s *session) look() {
	if s.pool != nil {
		s.view = view{s.pool.memory, s.pool.record.Index, s.pool.record.Memory, s.pool.region}
	}
}

// answer puts the header of an answer in front of the body that ends at len(s.out), and was begun
// at from. A body is appended first, behind room for the header, since only then its length and
// status are known. An answer without a body has from beyond the end. The kind and the tag are
// those of the request. By the tag its sender finds that answers come in order.
func (s *session) answer(h transport.Header, st transport.Status, items, from int) {
	s.counters.frames++
	if from > len(s.out) { // no body yet, nor room for the header
		s.out = append(s.out, make([]byte, transport.HeaderBytes)...)
	}
	transport.Header{Body: len(s.out) - from, Kind: h.Kind, Status: st, Items: items,
		Tag: h.Tag}.Put(s.out[from-transport.HeaderBytes:])
}
