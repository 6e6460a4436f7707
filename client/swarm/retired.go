package swarm

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// An object whose entry was dropped is retired. Each object has a word at its region's first
// replica, changed by CAS only:
//
//	0      the directory names the object, a client owns it, or it is garbage that a sweep has to find
//	other  the object is retired: the first epoch in which a client may claim it
//
// The client whose change dropped the entry retires the object, from 0. A client claims it, back
// to 0, in an idle view and not before its epoch. Only then are the object's words made zero, and
// their buffers are the claimer's.
//
// What a crash leaves: an object that no word names and that is not retired, in each case. The next
// sweep retires it.
//
// Why no verb of the former life lands in the next one. Let r be the epoch of the client that
// dropped the entry. A client that the directory still told of the entry has joined r+1 at most:
// the fence of r+1 ends before r+2 begins, and with it the change. It uses the location in r+2 at
// most (package kit, R3). What it posts then ends with the fence of r+3, and that ends before r+4
// begins. The CAS that retires is posted once, in r or r+1. A sweep that finds the object first
// retires it for an epoch in which that CAS can land no more.
const (
	// retiredFor is from which epoch behind its entry's drop an object may be claimed.
	retiredFor = 4
	// sweptFor is the same behind the epoch of the sweep that found no entry: it began behind its
	// fence, so that no client is told of an entry in a later epoch.
	sweptFor = 3
)

func (l *plan) retiredBytes() uint64 { return 8 * uint64(l.Objects) }

// retiredAt returns where the word of a region's i-th object lies.
func (l *plan) retiredAt(region int, i uint64) rdma.Addr {
	return rdma.At(l.regions[region][0].Node(), l.retired+uint64(region)*l.retiredBytes()+8*i)
}

// numberOf returns the region of a location, and the object's number there.
func (l *plan) numberOf(location uint64) (region int, i uint64) {
	return int((location - 1) / uint64(l.Objects)), (location - 1) % uint64(l.Objects)
}

// retiringBatches bounds the batches in flight that retire objects. Beyond it objects are left to a
// sweep.
const retiringBatches = 16

// retire gives objects away, in the background, to be claimed from an epoch on. Objects that no
// other client has known since they were claimed may be claimed in the next one: not in this one,
// so that a claim that expects their former epoch fails.
func (s *Store) retire(locations []uint64, epoch uint64) {
	s.retiring = slices.DeleteFunc(s.retiring, func(b *rdma.Batch) bool {
		done := b.Finished()
		if done {
			b.Release()
		}
		return done
	})
	if len(locations) == 0 || s.member == nil || len(s.retiring) == retiringBatches {
		return
	}
	b := s.ep.Batch()
	for _, location := range locations {
		b.Chain()
		b.CompareSwap(s.retiredAt(s.numberOf(location)), 0, epoch)
	}
	if s.ep.Post(b.As(stepRetire)) != nil { // an endpoint that cannot post says so in the next operation
		b.Release()
		return
	}
	s.retiring = append(s.retiring, b)
}

// closeRetired retires what the client owns, and waits for that.
func (s *Store) closeRetired() {
	o := &s.objects
	if s.member != nil && s.member.Keeps(o.epoch) {
		s.retire(o.free, s.epoch()+1)
		if o.location != 0 {
			s.retire([]uint64{o.location}, s.epoch()+retiredFor)
		}
	}
	o.free, o.location = nil, 0
	began := s.ep.Now()
	for _, b := range s.retiring {
		_ = s.ep.Wait(b, rdma.All, max(s.c.opt.Timeout-(s.ep.Now()-began), 0)) // what did not land waits for a sweep
		b.Release()
	}
	s.retiring = nil
}

// scan is how far a client has looked for retired objects in a region, in one epoch.
type scan struct {
	epoch uint64
	at    int  // the next one
	left  int  // to look at
	full  bool // all objects of the region were handed out
}

// scanRun is how many objects' words a READ has.
const scanRun = 512

// eachRetired calls f with the retired objects among n of a region, from the i-th on.
func (l *plan) eachRetired(ep rdma.Endpoint, step rdma.Step, region, i, n int, within time.Duration, f func(i, epoch uint64)) error {
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

// errYoung is wrapped when all objects are in use but for retired ones that may not be claimed yet.
var errYoung = fmt.Errorf("retired objects may not be claimed yet: %w", client.ErrFull)

// anyRetired reports whether there are retired objects, of which some may be on their way.
func (s *Store) anyRetired() bool {
	any := len(s.retiring) > 0
	for region := range s.Regions {
		for i := 0; i < s.Objects && !any && !s.lost(region); i += scanRun {
			err := s.eachRetired(s.ep, stepReadRetired, region, i, min(scanRun, s.Objects-i), s.values.Patience(), func(uint64, uint64) { any = true })
			if err != nil {
				break
			}
		}
	}
	return any
}

// retired is an object that may be claimed from an epoch on.
type retired struct{ i, epoch uint64 }

// claim takes up to n retired objects of a region; false: it has none that is old enough. Each
// epoch's scan begins where the last one ended.
func (s *Store) claim(region, n int) (bool, error) {
	at, now := &s.scans[region], s.epoch()
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

// take claims objects, makes their words zero at all replicas, and adds them to the client's. First
// it reads the words: a region with a replica that does not answer is left as it is.
//
// What a crash here leaves: objects that are retired no more, with some of their words. A sweep
// retires them, behind the fence of what is in flight.
func (s *Store) take(region int, found []retired) error {
	words, claims, zero := s.ep.Batch(), s.ep.Batch(), s.ep.Batch()
	defer words.Release()
	defer claims.Release()
	defer zero.Release()
	for r := 0; r < s.Replicas && !s.layout.raw(); r++ { // RAW's have no words, and are written before the directory names them
		at := s.regions[region][r]
		for k := 0; k < len(found) && !s.member.Members[at.Node()].Gone; k++ {
			words.Read(at.Add(found[k].i*s.stride(r)), s.layout.dataAt())
		}
	}
	err := s.do(words, stepReadRetired)
	for _, f := range found {
		claims.CompareSwap(s.retiredAt(region, f.i), f.epoch, 0)
	}
	if err == nil {
		err = s.do(claims, stepClaim)
	}
	for k := 0; err == nil && k < words.Len(); k++ {
		op := words.Op(k)
		for off := 0; off < len(op.Buf) && claims.Op(k%len(found)).Swapped(); off += 8 { // else another client was faster
			if word := le.Uint64(op.Buf[off:]); word != 0 {
				zero.CompareSwap(op.Addr.Add(uint64(off)), word, 0)
			}
		}
	}
	if err == nil {
		err = s.do(zero, stepClaim)
	}
	if err != nil {
		return err
	}
	return s.took(region, found, claims, zero)
}

// do is rdma.Do for a batch that may be empty.
func (s *Store) do(b *rdma.Batch, step rdma.Step) error {
	if b.Len() == 0 {
		return nil
	}
	return rdma.Do(s.ep, b.As(step), s.values.Patience())
}

// took makes objects the client's whose words are zero, and the buffers that these named.
func (s *Store) took(region int, found []retired, claims, zero *rdma.Batch) error {
	for k := range zero.Len() {
		cas := zero.Op(k)
		if !cas.Swapped() {
			return fmt.Errorf("%s: it held %#x: an operation changes an object that is retired: %w", cas.Addr, cas.Result, client.ErrDamaged)
		}
		location, part := s.objectAt(region, cas.Addr)
		if part >= s.layout.wordsAt() {
			s.values.Give(cas.Addr.Node(), spread(location), bufferOf(Word(cas.Expect)))
		}
	}
	for k, f := range found {
		if claims.Op(k).Swapped() {
			s.objects.free = append(s.objects.free, s.locationOf(region, f.i))
		}
	}
	return nil
}

// objectAt returns the location of the object of a region that has an address, and the address's
// offset in that.
func (l *plan) objectAt(region int, a rdma.Addr) (location uint64, part int) {
	for r, at := range l.regions[region][:l.Replicas] {
		if at.Node() == a.Node() {
			in := a.Offset() - at.Offset()
			location, part = l.locationOf(region, in/l.stride(r)), int(in%l.stride(r))
		}
	}
	return location, part
}
