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
	ended     bool
	// connections of the process's workers to the node's memory and rings, past this one
	attached map[target]attachment
	ringed   int            // of these, to rings
	boxes    map[owner]*box // of the process's workers, under executing
	entries  []entry        // that have begun, and have no other block in flight; empty between two batches
	mailed   []*outlet      // those that got messages which have not been forwarded yet
	meets    bool           // it has made offers
	hosts    atomic.Bool    // it has mailboxes to which messages come from device to device
	parted   atomic.Uint64  // the last fence of which it has ended the connections concerned
	// It goes with the connection. The worker itself posts nothing to the node any more, also over
	// the next one.
	broken map[rdma.ClientID]uint64 // lives that strayed: their connection is down

	// out begins with whole frames of answers, and ends with the one that is being made. It is the
	// own buffer of the connection, or a large one: see outputs. Only the goroutine that executes
	// touches it.
	out      []byte // answers that are not sent yet
	view     view
	request  rdma.Request // that is being executed
	counters tally
	own      uint64 // for barriers; its cache line is not shared
}

// drain waits until the requests being executed are over, including those that a device executes
// for workers that may post no more. With end, the connection executes no requests from then on.
// When it returns, a request that is executed later finds what the caller changed before, such as a
// fence. Devices are told as well: detach ends their connections, and returns when these land
// nothing any more.
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

// look lets procedures look at the pool's memory.
func (s *session) look() {
	if s.pool != nil {
		s.view = view{s.pool.memory, s.pool.record.Index, s.pool.record.Memory, s.pool.region}
	}
}

// answer puts the header of an answer in front of the body that ends at len(c.out), and was begun
// at from.
func (s *session) answer(h transport.Header, st transport.Status, items, from int) {
	s.counters.frames++
	if from > len(s.out) { // no body yet, nor room for the header
		s.out = append(s.out, make([]byte, transport.HeaderBytes)...)
	}
	transport.Header{Body: len(s.out) - from, Kind: h.Kind, Status: st, Items: items,
		Tag: h.Tag}.Put(s.out[from-transport.HeaderBytes:])
}
