package quorum

import (
	"encoding/binary"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Ceiling is a kit.Ceiling of which each replica has a copy, changed by CAS: a majority of them has
// the highest word. It needs no master when nodes die. Only an identity's holder changes it; a CAS
// of an earlier holder's that lands late can only raise it.
type Ceiling struct {
	Quorum
	at    []rdma.Addr
	words [MaxReplicas]uint64 // as they were met last
}

var _ kit.Ceiling = (*Ceiling)(nil)

// ceilingAttempts bounds how often one replica is asked in a step.
const ceilingAttempts = 8

// NewCeiling returns the ceiling that lies at some addresses, of each replica.
func NewCeiling(ep rdma.Endpoint, at []rdma.Addr, o Options) *Ceiling {
	o.Attempts = ceilingAttempts
	return &Ceiling{Quorum: New(ep, o), at: at}
}

func (c *Ceiling) gather(step rdma.Step, first int, ask func(b *rdma.Batch, r int) error,
	answer func(r int, b *rdma.Batch, ch Chain) Verdict) error {
	return c.Gather(step, c.at, first, All(len(c.at)), Majority(len(c.at)), ask, answer)
}

// Read asks a majority. Clients begin with different replicas.
func (c *Ceiling) Read(meet func(word uint64)) error {
	return c.gather(kit.StepReadCeiling, int(c.ep.Client())%len(c.at),
		func(b *rdma.Batch, r int) error {
			b.Read(c.at[r], 8)
			return nil
		},
		func(r int, b *rdma.Batch, ch Chain) Verdict {
			c.words[r] = binary.LittleEndian.Uint64(b.Op(ch.First).Buf)
			meet(c.words[r])
			return Done
		})
}

// Raise brings the words of a majority to a value, or above.
func (c *Ceiling) Raise(to uint64) error {
	return c.gather(kit.StepRaiseCeiling, 0,
		func(b *rdma.Batch, r int) error {
			b.CompareSwap(c.at[r], c.words[r], max(c.words[r], to))
			return nil
		},
		func(r int, b *rdma.Batch, ch Chain) Verdict {
			cas := b.Op(ch.First)
			c.words[r] = cas.Result
			if cas.Swapped() {
				c.words[r] = cas.Value
			}
			if c.words[r] >= to {
				return Done
			}
			return Again
		})
}

// Lower brings the words of a majority down to a value, where that can be done at once: a holder
// that closes gives back what it reserved and did not use. The ceiling is not used behind it.
func (c *Ceiling) Lower(to uint64) {
	_ = c.gather(kit.StepLowerCeiling, 0,
		func(b *rdma.Batch, r int) error {
			b.CompareSwap(c.at[r], c.words[r], min(c.words[r], to))
			return nil
		},
		func(int, *rdma.Batch, Chain) Verdict { return Done }) // a word that stays high costs numbers, at most
	c.Release()
}
