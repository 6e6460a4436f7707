package swarm

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// The list of a region's objects that sweeps have freed lies at its first replica: a word, and an
// array of the objects' numbers, 8 bytes each. Clients take from the front and change the word
// only, by CAS, in an idle view. The master adds at the end in a busy view, when no client takes.
// Within an epoch the word never takes the same value twice, and no CAS reaches the next epoch.
type freed uint64

func (f freed) next() uint64  { return uint64(f >> 32) } // of the array, to be taken
func (f freed) count() uint64 { return uint64(f & (1<<32 - 1)) }

func freedWord(next, count uint64) freed { return freed(next<<32 | count) }

func (l *plan) freedBytes() uint64 { return 8 + 8*uint64(l.Objects) }

// freedAt returns where a region's word lies.
func (l *plan) freedAt(region int) rdma.Addr {
	return rdma.At(l.regions[region][0].Node(), l.freed+uint64(region)*l.freedBytes())
}

func (l *plan) freedNumber(region int, i uint64) rdma.Addr { return l.freedAt(region).Add(8 + 8*i) }

// takeAttempts bounds how often a client meets others at a list before it takes new objects
// instead.
const takeAttempts = 16

// takeFreed takes up to n objects from a region's list; false: there is none.
func (s *Store) takeFreed(region, n int) (bool, error) {
	f, err := s.readFreed(region)
	for range takeAttempts {
		if err != nil || f.next() >= f.count() {
			return false, err
		}
		taken := min(uint64(n), f.count()-f.next())
		b := s.ep.Batch()
		cas := b.CompareSwap(s.freedAt(region), uint64(f), uint64(freedWord(f.next()+taken, f.count())))
		numbers := b.Read(s.freedNumber(region, f.next()), 8*int(taken))
		if err = rdma.Do(s.ep, b.As(stepTakeFreed), s.values.Patience()); err == nil && cas.Swapped() {
			err = s.own(region, numbers.Buf)
			b.Release()
			return err == nil, err
		}
		f = freed(cas.Result)
		b.Release()
	}
	return false, err
}

func (s *Store) readFreed(region int) (freed, error) {
	word, err := rdma.ReadWord(s.ep, stepReadFreed, s.freedAt(region), s.values.Patience())
	return freed(word), err
}

// own adds objects to those of the client.
func (s *Store) own(region int, numbers []byte) error {
	for ; len(numbers) > 0; numbers = numbers[8:] {
		n := le.Uint64(numbers)
		if n >= uint64(s.Objects) {
			return fmt.Errorf("object %d of region %d is free, which has %d: %w", n, region, s.Objects, client.ErrDamaged)
		}
		s.objects.free = append(s.objects.free, s.locationOf(region, n))
	}
	return nil
}

// listFreed returns the numbers of the objects in a region's list. No client takes any meanwhile.
func (s *Store) listFreed(region int) ([]uint64, error) {
	f, err := s.readFreed(region)
	if err != nil || f.next() >= f.count() {
		return nil, err
	}
	if f.count() > uint64(s.Objects) {
		return nil, fmt.Errorf("the list of region %d has %d objects of %d: %w", region, f.count(), s.Objects, client.ErrDamaged)
	}
	p, err := rdma.ReadBytes(s.ep, stepReadFreed, s.freedNumber(region, f.next()), 8*int(f.count()-f.next()), s.Timeout)
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	for ; len(p) > 0; p = p[8:] {
		numbers = append(numbers, le.Uint64(p))
	}
	return numbers, nil
}

// addFreed adds objects to a region's list. Where the array has no room behind those that are left
// it is written anew, behind a word that says that there are none: a crash there leaves objects
// that the next sweep finds.
func (s *Store) addFreed(region int, numbers []uint64) error {
	f, err := s.readFreed(region)
	if err != nil {
		return err
	}
	if f.count()+uint64(len(numbers)) > uint64(s.Objects) {
		left, err := s.listFreed(region)
		if err == nil {
			err = s.swapFreed(region, f, 0, nil)
		}
		if err != nil {
			return err
		}
		numbers, f = append(left, numbers...), 0
	}
	return s.swapFreed(region, f, freedWord(f.next(), f.count()+uint64(len(numbers))), numbers)
}

// swapFreed writes numbers behind those of the word from, and then replaces it.
func (s *Store) swapFreed(region int, from, to freed, numbers []uint64) error {
	b := s.ep.Batch()
	defer b.Release()
	if len(numbers) > 0 {
		p := b.Alloc(8 * len(numbers))
		for i, n := range numbers {
			le.PutUint64(p[8*i:], n)
		}
		b.Write(s.freedNumber(region, from.count()), p)
	}
	cas := b.CompareSwap(s.freedAt(region), uint64(from), uint64(to))
	if err := rdma.Do(s.ep, b.As(stepAddFreed), s.Timeout); err != nil {
		return err
	}
	if !cas.Swapped() {
		return fmt.Errorf("%s: it held %#x, not %#x: somebody takes objects while the pool is swept: %w", cas.Addr, cas.Result, uint64(from), client.ErrDamaged)
	}
	return nil
}
