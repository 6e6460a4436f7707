package swarm

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// An object is retired when its entry was dropped. Each object has a word at its region's first
// replica, changed by CAS only:
//
//	0      the directory names the object, a client owns it, or it is garbage, for a sweep to find
//	other  the object is retired: the first epoch in which a client may claim it
//
// The client that dropped the entry retires the object: its CAS expects 0. A client claims the
// object in an idle view, not before its epoch: its CAS sets the word to 0. Only then the client
// makes the object's words zero, and owns the buffers that they named. A sweep of that epoch or a
// later one, under its busy view, makes the words zero while the object stays retired.
//
// What a crash between any two of these steps leaves: an object that no entry names and that is not
// retired. The next sweep retires it.
//
// Why no verb of the former life lands in the next one. Let r be the epoch of the client that
// dropped the entry. A client to which the directory still named the entry was in epoch r+1 at
// most: the fence of r+1 is over before r+2 begins, and with it the change. That client uses the
// location in r+2 at most (package kit, R3). What it posts then ends with the fence of r+3, which
// is over before r+4 begins. The CAS that retires is posted once, in r or r+1: a client that learns
// later that its change was made leaves the object to a sweep. If a sweep finds the object first,
// it retires the object until an epoch in which that CAS cannot land any more.
const (
	// retiredFor is how many epochs after its entry was dropped an object may be claimed.
	retiredFor = 4
	// sweptFor is how many epochs after a sweep that found no entry of it an object may be
	// claimed. It is one less: the sweep began behind the fence of its epoch, so the directory
	// names the object to no client in a later epoch.
	sweptFor = 3
)

// retiredBytes returns the size of a region's retirement words.
func (l *plan) retiredBytes() uint64 { return 8 * uint64(l.Objects) }

// retiredAt returns the address of the retirement word of a region's i-th object.
func (l *plan) retiredAt(region int, i uint64) rdma.Addr {
	return rdma.At(l.regions[region][0].Node(), l.retired+uint64(region)*l.retiredBytes()+8*i)
}

// numberOf returns the region of a location, and the object's number there.
func (l *plan) numberOf(location uint64) (region int, i uint64) {
	return int((location - 1) / uint64(l.Objects)), (location - 1) % uint64(l.Objects)
}

// retiringBatches bounds the batches in flight that retire objects. Beyond it objects are left
// to a sweep.
const retiringBatches = 16

// retire gives objects away, in the background, to be claimed from an epoch on. The caller is the
// only client that may: it owns them, or has dropped their entries. Objects that no other client
// has known since they were claimed may be claimed in the next epoch; not in this one, so that a
// late claim, which expects their former epoch, fails. If too much is in flight, or the CAS
// fails, a sweep will find them.
func (s *Store) retire(locations []uint64, epoch uint64) {
	room := s.retiring.Room(retiringBatches)
	if len(locations) == 0 {
		return
	}
	if !room {
		s.leaves = true
		return
	}
	b := s.ep.Batch()
	for _, location := range locations {
		b.Chain()
		b.CompareSwap(s.retiredAt(s.numberOf(location)), 0, epoch)
	}
	s.retiring.Post(s.ep, b.As(stepRetire))
}

// closeRetired retires the objects that the client owns, and waits for that until the timeout.
// spare rests as long as an object of which the entry was dropped.
func (s *Store) closeRetired() {
	o := &s.objects
	if s.member.Keeps(o.epoch) {
		s.retire(o.free, s.member.Epoch+1)
		if o.location != 0 {
			s.retire([]uint64{o.location}, s.member.Epoch+retiredFor)
		}
	}
	o.free, o.location = nil, 0
	began := s.ep.Now()
	for _, b := range s.retiring {
		// A sweep finds the objects of which the CAS does not land.
		_ = s.ep.Wait(b, rdma.All, max(s.c.opt.Timeout-(s.ep.Now()-began), 0))
	}
	s.retiring.Release()
}

// scan is a client's search for retired objects in a region. Each object is examined once an epoch.
type scan struct {
	epoch uint64
	// at is the object to examine next, and left is how many are left in this epoch.
	at   int
	left int
	// full: all objects of the region were handed out. This does not change any more.
	full bool
}

// scanRun is how many retirement words a READ covers: 4 KB.
const scanRun = 512

// eachRetired calls f with the retired objects among n of a region, from the i-th on. It takes a
// trip for each scanRun of them. within bounds a trip.
func (l *plan) eachRetired(ep rdma.Endpoint, step rdma.Step, region, i, n int, within time.Duration,
	f func(i, epoch uint64)) error {
	for end := i + n; i < end; i += scanRun {
		p, err := rdma.ReadBytes(ep, step, l.retiredAt(region, uint64(i)), 8*min(scanRun, end-i), within)
		if err != nil {
			return fmt.Errorf("read what is retired of region %d: %w", region, err)
		}
		for k := range len(p) / 8 {
			if epoch := le.Uint64(p[8*k:]); epoch != 0 {
				f(uint64(i+k), epoch)
			}
		}
	}
	return nil
}

// errYoung is wrapped when all objects are in use, except retired ones that may not be claimed yet:
// epochs help, and a sweep is not needed.
var errYoung = fmt.Errorf("retired objects may not be claimed yet: %w", client.ErrFull)

// anyRetired reports whether there are retired objects, or this client's CASes that retire some are
// in flight. A region that does not answer counts as one without.
func (s *Store) anyRetired() bool {
	any := len(s.retiring) > 0
	for region := range s.Regions {
		for i := 0; i < s.Objects && !any && !s.lost(region); i += scanRun {
			err := s.eachRetired(s.ep, stepReadRetired, region, i, min(scanRun, s.Objects-i), s.values.Patience(),
				func(uint64, uint64) { any = true })
			if err != nil {
				break
			}
		}
	}
	return any
}

// retired is an object that may be claimed from an epoch on.
type retired struct{ i, epoch uint64 }

// claim takes up to n retired objects of a region; false: it has none that is old enough. The
// search of an epoch begins where that of the last one ended, and ends when each object was
// examined.
func (s *Store) claim(region, n int) (bool, error) {
	at, now := &s.scans[region], s.member.Epoch
	if at.epoch != now {
		at.epoch, at.left = now, s.Objects
	}
	for at.left > 0 {
		run := min(scanRun, at.left, s.Objects-at.at)
		var found []retired
		err := s.eachRetired(s.ep, stepReadRetired, region, at.at, run, s.values.Patience(), func(i, epoch uint64) {
			if epoch <= now && len(found) < n {
				found = append(found, retired{i, epoch})
			}
		})
		if err != nil {
			return false, err
		}
		if len(found) == n {
			// The rest of the run was not examined.
			run = int(found[n-1].i) + 1 - at.at
		}
		at.at, at.left = (at.at+run)%s.Objects, at.left-run
		if len(found) > 0 {
			if err := s.take(region, found); err != nil || len(s.objects.free) > 0 {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// take claims objects, makes their words zero at all replicas, and adds them to the client's. It
// takes up to three trips: it reads the words, so that nothing is claimed if a replica does not
// answer; it claims, by a CAS of each retirement word from the epoch that was read; and it CASes
// each word that is not zero. No client changes the words of a retired object, and no sweep does in
// an idle view, so the words are still what was read. A replica on a node that is gone is left out.
// RAW's objects have no words, and are written before the directory names them.
//
// What a crash here leaves: objects that are not retired any more, with some of their words. A
// sweep retires them, behind the fence of what is in flight.
func (s *Store) take(region int, found []retired) error {
	words, claims := s.ep.Batch(), s.ep.Batch()
	defer words.Release()
	defer claims.Release()
	for r := 0; r < s.Replicas && !s.layout.raw(); r++ {
		at := s.regions[region][r]
		for k := 0; k < len(found) && !s.member.Gone(at.Node()); k++ {
			words.Read(at.Add(found[k].i*s.stride(r)), s.layout.dataAt())
		}
	}
	if err := rdma.Do(s.ep, words.As(stepReadRetired), s.values.Patience()); err != nil {
		return err
	}
	// From a successful claim on the client owns the object.
	for _, f := range found {
		claims.CompareSwap(s.retiredAt(region, f.i), f.epoch, 0)
	}
	if err := rdma.Do(s.ep, claims.As(stepClaim), s.values.Patience()); err != nil {
		return err
	}
	// Another client has claimed the object if the CAS failed.
	claimed := func(k int) bool { return claims.Op(k % len(found)).Swapped() }
	err := s.zero(stepClaim, s.values.Patience(), words, claimed, func(k int, cas *rdma.Op) {
		// The client gives back the buffers that the words named. The locks have none.
		if cas.Addr.Offset()-words.Op(k).Addr.Offset() >= uint64(s.layout.wordsAt()) {
			location := s.locationOf(region, found[k%len(found)].i)
			s.values.Give(cas.Addr.Node(), spread(location), bufferOf(Word(cas.Expect)))
		}
	})
	if err != nil {
		return err
	}
	for k, f := range found {
		if claims.Op(k).Swapped() {
			s.objects.free = append(s.objects.free, s.locationOf(region, f.i))
		}
	}
	return nil
}

// zero makes the words of retired objects zero: those that the READs of a batch have found, if of
// reports the READ's number. It calls was with the READ's number and the CAS of each word that was
// not zero. The error wraps client.ErrDamaged if a word has changed since it was read.
func (s *Store) zero(step rdma.Step, within time.Duration, words *rdma.Batch, of func(k int) bool,
	was func(k int, cas *rdma.Op)) error {
	b, reads := s.ep.Batch(), []int(nil)
	defer b.Release()
	for k := range words.Len() {
		op := words.Op(k)
		for i := 0; i < len(op.Buf)/8 && of(k); i++ {
			if word := op.Word(i); word != 0 {
				b.CompareSwap(op.Addr.Add(uint64(8*i)), word, 0)
				reads = append(reads, k)
			}
		}
	}
	if err := rdma.Do(s.ep, b.As(step), within); err != nil {
		return err
	}
	for i, k := range reads {
		cas := b.Op(i)
		if !cas.Swapped() {
			return fmt.Errorf("%s: it held %#x: an operation changes an object that is retired: %w",
				cas.Addr, cas.Result, client.ErrDamaged)
		}
		was(k, cas)
	}
	return nil
}
