package session

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// A client numbers its operations and its tombstones. An identity may have had another holder, of
// which objects and tombstones are still there. So each holder begins above all numbers of the
// ones before. The identity's ceiling tells them, a word behind the journal (kit.Everywhere).
// Tombstones have 32 bits, so they are counted apart: the ceiling's lower half is theirs, the
// upper half counts steps of sequence numbers.
//
// A tombstone must never come back, so an identity that has used all of them writes no more. What
// a holder reserved and did not use is lost. So its first step is small, and each further one is
// twice the last. Recoveries have a share of their own, so that a dead client of a spent identity
// can be recovered. Of sequence numbers an object keeps 48 bits. No decision depends on them
// alone, so they may wrap.
//
// The ceiling is raised before a number above it is used. A crash in between loses the numbers
// that were reserved.
const (
	// SeqStep is how many sequence numbers a raise reserves.
	SeqStep = 1 << 24
	// Tombstones that the first raise of a holder reserves, and that later ones do at most.
	FirstTombStep = 1 << 4
	LastTombStep  = 1 << 12
	// MaxTomb is the last tombstone of an identity. Those above MaxOwnTomb are for recoveries,
	// which take a few each.
	MaxTomb    = 1<<32 - 1
	MaxOwnTomb = MaxTomb - 1<<20
)

// Numbers are those of an identity: the last that were used, and the limits up to which its
// ceiling has reserved them.
type Numbers struct {
	Seq, SeqLimit   uint64
	Tomb, TombLimit uint64
	tombStep        uint64 // tombstones of the next raise; 0: FirstTombStep
}

// ErrExhausted is wrapped by the error of a write when the client's identity has used all of its
// tombstones. Nothing was written. Clients with other identities go on, and a new pool has all of
// them.
var ErrExhausted = errors.New("no tombstone is left; a new pool has all of them")

// Reserve returns the numbers with a higher limit of tombstones, up to most. Nothing is written:
// the caller writes the ceiling before it uses them.
func (n Numbers) Reserve(most uint64) (Numbers, error) {
	if n.TombLimit >= most {
		return n, ErrExhausted
	}
	step := max(n.tombStep, FirstTombStep)
	n.TombLimit, n.tombStep = min(n.TombLimit+step, most), min(2*step, LastTombStep)
	return n, nil
}

// ceilingOf returns the ceiling of an identity, on all nodes that serve.
func (s *Session) ceilingOf(id rdma.ClientID) *kit.Everywhere {
	e := &kit.Everywhere{Batch: s.Endpoint.Batch, Do: s.Do}
	for _, n := range s.Holders {
		e.At = append(e.At, s.Ceiling(id, n))
	}
	return e
}

// NumbersOf returns the numbers that no earlier holder of an identity has used. None are
// reserved: the limits are where they begin.
func (s *Session) NumbersOf(id rdma.ClientID) (n Numbers, err error) {
	err = s.ceilingOf(id).Read(func(word uint64) {
		n.SeqLimit = max(n.SeqLimit, word>>32*SeqStep)
		n.TombLimit = max(n.TombLimit, word&(1<<32-1))
	})
	if err != nil {
		return n, fmt.Errorf("read the ceiling of client %d: %w", id, err)
	}
	n.Seq, n.Tomb = n.SeqLimit, n.TombLimit
	return n, nil
}

// WriteCeiling writes an identity's ceiling on all nodes that serve.
func (s *Session) WriteCeiling(id rdma.ClientID, n Numbers) error {
	if err := s.ceilingOf(id).Raise(n.SeqLimit/SeqStep<<32 | n.TombLimit&(1<<32-1)); err != nil {
		return fmt.Errorf("raise the ceiling of client %d: %w", id, err)
	}
	return nil
}

// Number gives an operation its sequence number, and makes sure that there is a tombstone for it:
// few operations take more than one. So an operation hardly ever raises the ceiling in the midst
// of a round.
func (s *Session) Number() error {
	if next := s.Numbers; next.Seq == next.SeqLimit || next.Tomb == next.TombLimit {
		if next.Seq == next.SeqLimit {
			next.SeqLimit += SeqStep
		}
		if next.Tomb == next.TombLimit {
			var err error
			if next, err = next.Reserve(MaxOwnTomb); err != nil {
				return fmt.Errorf("write as client %d: %w", s.ID, err)
			}
		}
		if err := s.WriteCeiling(s.ID, next); err != nil {
			return err
		}
		s.Numbers = next
		s.Clock = s.Now() // not older than the trip
	}
	s.Numbers.Seq++
	return nil
}

// Tombstone returns a word for an emptied slot that was never used before. It raises the ceiling
// where none is reserved, also above MaxOwnTomb: a round that has begun must end.
func (s *Session) Tombstone(print uint8) (race.Word, error) {
	return s.TombstoneOf(s.ID, &s.Numbers, print)
}

// TombstoneOf is Tombstone for an identity with the given numbers: the client's own, or a dead
// client's that it recovers.
func (s *Session) TombstoneOf(id rdma.ClientID, n *Numbers, print uint8) (race.Word, error) {
	if n.Tomb == n.TombLimit {
		next, err := n.Reserve(MaxTomb)
		if err == nil {
			err = s.WriteCeiling(id, next)
		}
		if err != nil {
			return 0, fmt.Errorf("a tombstone of client %d: %w", id, err)
		}
		*n = next
	}
	n.Tomb++
	return race.Tombstone(print, id, uint32(n.Tomb)), nil
}
