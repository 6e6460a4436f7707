package kv

import (
	"sync"

	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// handover is what the task that receives and the exchanger hand over to each other.
type handover struct {
	// mu guards the fields below. It is held over no wait.
	mu sync.Mutex
	// What the exchanger is to give; nil: it has taken it.
	gift *gift
	// Digests of the server's replicas in the term digested, once they are known.
	digests  []cm.Digest
	digested uint64
}

// give hands a gift over to the exchanger.
func (h *handover) give(g *gift) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gift = g
}

// take takes the gift that was handed over; nil: there is none. Until it is taken the exchanger
// passes no later question of cleaners: it reads the gift's entries afterwards.
func (h *handover) take() *gift {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.gift
	h.gift = nil
	return g
}

// tell hands over the digests of the server's replicas in a term.
func (h *handover) tell(term uint64, all []cm.Digest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.digests, h.digested = all, term
}

// told returns the digests of the server's replicas in a term; nil: they are not known yet.
func (h *handover) told(term uint64) []cm.Digest {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.digested != term {
		return nil
	}
	return h.digests
}

// located is a record and where its entry lies.
type located struct {
	at      uint64 // offset in the node's memory
	shard   int
	version uint64
}

// gift is what a server gives the other replicas at the beginning of a term: records that may not
// be on all replicas. They lie in segments that are not committed, so no cleaner frees them.
type gift struct {
	term    *term
	records []located
}
