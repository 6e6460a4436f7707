package quorum

import (
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Ceiling is a kit.Ceiling with a copy on each replica, changed by CAS. Invariant: a majority of
// copies is at least as high as each word that Raise has returned nil for. It needs no master when
// nodes die. Only the holder of the identity changes it. A late Raise of an earlier holder can only
// raise it; for a late Lower see there.
type Ceiling struct {
	Quorum
	// The addresses of the copies, by replica, each on a node of its own. They never change.
	at []rdma.Addr
	// By replica: the word as it was last read or written. It is what the next CAS expects. A wrong
	// one costs a CAS that fails.
	words [MaxReplicas]uint64
}

var _ kit.Ceiling = (*Ceiling)(nil)

// ceilingAttempts bounds how often one replica is asked in a step. A CAS fails only if an earlier
// holder's CAS has landed meanwhile.
const ceilingAttempts = 8

// NewCeiling returns the ceiling that has its copies at the given addresses, by replica.
func NewCeiling(ep rdma.Endpoint, at []rdma.Addr, o Options) *Ceiling {
	o.Attempts = ceilingAttempts
	return &Ceiling{Quorum: New(ep, o), at: at}
}

// gather asks a majority of the replicas.
func (c *Ceiling) gather(step rdma.Step, first int, ask Ask, answer Answer) error {
	return c.Gather(step, c.at, first, All(len(c.at)), Majority(len(c.at)), ask, answer)
}

// Read implements kit.Ceiling: it asks a majority. Different clients begin with different replicas.
// A majority meets each majority that a Raise has reached, so one of the copies is high enough.
func (c *Ceiling) Read(meet func(word uint64)) error {
	return c.gather(kit.StepReadCeiling, int(c.ep.Client())%len(c.at),
		func(b *rdma.Batch, r int) error {
			b.Read(c.at[r], 8)
			return nil
		},
		func(r int, b *rdma.Batch, ch Chain) Verdict {
			c.words[r] = b.Op(ch.First).Word(0)
			meet(c.words[r])
			return Done
		})
}

// Raise implements kit.Ceiling: it raises the words of a majority to a value at least. A crash in
// the middle leaves some words higher, which is harmless.
//
// Without an answer the same holds: no copy is lowered. The caller then uses no number above the
// last ceiling that it knows to be raised.
func (c *Ceiling) Raise(to uint64) error {
	return c.gather(kit.StepRaiseCeiling, 0,
		func(b *rdma.Batch, r int) error {
			b.CompareSwap(c.at[r], c.words[r], max(c.words[r], to))
			return nil
		},
		func(r int, b *rdma.Batch, ch Chain) Verdict {
			c.words[r] = b.Op(ch.First).After()
			// A CAS that failed has read the word: it may be high enough.
			if c.words[r] >= to {
				return Done
			}
			return Again
		})
}

// Lower lowers the words of a majority to a value, if that succeeds at once: a holder that closes
// gives back the numbers that it reserved and did not use. The ceiling must not be used afterwards.
// Numbers above the value must not have been used.
//
// A CAS without an answer may land when the identity has another holder. That does no harm: the
// next holder's first Raise is above all words that this one has left (kit.Numbers reserves beyond
// what was used). So at each copy that it reaches, it finds the word lowered, or makes the late CAS
// fail.
func (c *Ceiling) Lower(to uint64) {
	_ = c.gather(kit.StepLowerCeiling, 0,
		func(b *rdma.Batch, r int) error {
			b.CompareSwap(c.at[r], c.words[r], min(c.words[r], to))
			return nil
		},
		func(int, *rdma.Batch, Chain) Verdict { return Done }) // a word that stays high only costs numbers
	c.Release()
}
