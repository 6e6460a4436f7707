package state

import (
	"sync"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// Handover is what the task that receives and the exchanger hand over to each other.
type Handover struct {
	// mu guards the fields below. It is held over no wait.
	mu sync.Mutex
	// What the exchanger is to give; nil: it has taken it.
	gift *Gift
	// Digests of the server's replicas in the term digested, once they are known.
	digests  []cm.Digest
	digested uint64
}

// Give hands a gift over to the exchanger.
func (h *Handover) Give(g *Gift) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gift = g
}

// Take takes the gift that was handed over; nil: there is none. Until it is taken the exchanger
// passes no later question of cleaners: it reads the gift's entries afterwards.
func (h *Handover) Take() *Gift {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.gift
	h.gift = nil
	return g
}

// Tell hands over the digests of the server's replicas in a term.
func (h *Handover) Tell(term uint64, all []cm.Digest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.digests, h.digested = all, term
}

// Told returns the digests of the server's replicas in a term; nil: they are not known yet.
func (h *Handover) Told(term uint64) []cm.Digest {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.digested != term {
		return nil
	}
	return h.digests
}

// Located is a record and where its entry lies.
type Located struct {
	At    uint64 // offset in the node's memory
	Shard int
	kv.Order
}

// Gift is what a server gives the other replicas at the beginning of a term: records that may not
// be on all replicas. They lie in segments that are not committed, so no cleaner frees them.
type Gift struct {
	Term    *Term
	Records []Located
}
