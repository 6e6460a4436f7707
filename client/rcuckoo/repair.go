package rcuckoo

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Repair frees what dead clients have locked, and brings what they had begun to its end (section
// 4.2 and 4.3). A client that is stuck does it, or the pool's keeper for a client that it recovers,
// or a client for itself, when it does not know what became of its verbs. For some lock words of a
// shard:
//
//	1. The suspects: clients whose intents name one of them, and that are dead or have not moved for a failure timer; and
//	   those whose intents name a word that a suspect's names.
//	2. Suspects are fenced off: nothing of them lands any more. (A client that gave its operation up has seen to that
//	   itself.) So are holders of their words' repair leases that are dead, or have not moved for a failure timer. A
//	   client that asks the pool and fences off, which may take long when nodes do not answer, has nothing by which
//	   others would take it for dead.
//	3. The repair leases of all words that the suspects' intents name: all or none, by CAS. Suspects whose intents are others by
//	   now were seen to by another client.
//	4. The words' repair bits are set: no client takes a lock in these words any more. One that meets the bit ends its
//	   intent and waits.
//	5. Until no intent but the suspects' names one of the words.
//	6. The suspects' redos are carried out.
//	7. The suspects' intents are ended, the words become zero, and then the leases are free.
//
// Why the words are free then: a client that holds a lock has had an intent that names its word
// since before it took it (I1). Behind 4 no client takes one, so that an intent which does not name
// the word at one moment behind 4 is of a client that holds none of it until 7. What a torn one is
// of holds nothing either (I2). So behind 5 a bit that is set is a suspect's, or of none: of one
// whose repair another client did not bring to its end.
//
// Every step can be done again, by another client that has fenced off the one before: leases tell
// which that is. Only the one that has the leases writes into the rows of these words, ends the
// intents that name them, or clears their bits; and no identity that an intent or a lease still
// names is given to another client (see Mender.Recover).

// A lease says which client repairs a lock word. Changed by CAS only.
//
//	set      bit 63
//	client   16 bits
//	counter  47 bits: grows with each change, also while the holder is at work, which shows by it that it is alive
const (
	leaseSet   = 1 << 63
	leaseShift = 47
	leaseCount = 1<<leaseShift - 1
)

// leaseHolder returns the client that has a lease; 0: none.
func leaseHolder(lease uint64) rdma.ClientID {
	if lease&leaseSet == 0 {
		return 0
	}
	return rdma.ClientID(lease >> leaseShift)
}

// leaseNext is a lease's next word; 0 as client: it is free.
func leaseNext(lease uint64, c rdma.ClientID) uint64 {
	n := (lease + 1) & leaseCount
	if c != 0 {
		n |= leaseSet | uint64(c)<<leaseShift
	}
	return n
}

// mending is a repair at work.
type mending struct {
	shard    int
	words    []uint32        // in order
	suspects []rdma.ClientID // in order
	states   []uint64        // of their intents
	leases   []uint64        // of the words, as this worker wrote them
}

// errBusy is what a repair ends with that others are about to do.
var errBusy = fmt.Errorf("somebody repairs it: %w", errAgain)

// repair repairs lock words, and what belongs together with them. It returns nil when there is
// nothing to repair any more, and an error wrapping errAgain when another client is at it.
func (s *Store) repair(shard int, words []uint32) error {
	m := &s.mending
	m.shard, m.words = shard, append(m.words[:0], words...)
	for r := s.pace; ; {
		err := s.repairOnce(m)
		switch {
		case err == nil:
			s.stats.Repairs++
			return nil
		case !errors.Is(err, errAgain) || errors.Is(err, errBusy):
			return err
		case !r.Again():
			return errWaited
		}
	}
}

// repairOnce goes through the steps. The error wraps errAgain when another client proved to be dead
// meanwhile.
func (s *Store) repairOnce(m *mending) error {
	if err := s.look(m.shard); err != nil {
		return err
	}
	list := s.askAbout()
	s.suspect(m)
	if err := s.fence(m, list); err != nil {
		return err
	}
	if err := s.takeLeases(m); err != nil {
		return err
	}
	err := s.repairLeased(m)
	if errors.Is(err, errWaited) {
		if undone := s.unsetRepair(m); undone != nil {
			return undone
		}
	}
	if err == nil || errors.Is(err, errAgain) || errors.Is(err, errWaited) {
		if freed := s.freeLeases(m); freed != nil {
			return freed
		}
	}
	return err
}

func (s *Store) repairLeased(m *mending) error {
	if err := s.last(m); err != nil {
		return err
	}
	if err := s.setRepair(m); err != nil {
		return err
	}
	if err := s.await(m); err != nil {
		return err
	}
	if s.Replicas > 1 {
		s = s.showing(func(s *Store) error { return s.beat(m) })
	}
	for _, c := range m.suspects {
		t := s.vigil.intentOf(c)
		if err := s.rollForward(m.shard, c, t.state>>1); err != nil {
			return err
		}
	}
	return s.clear(m)
}

// suspect finds the suspects of what was looked at, and the words that their intents name.
func (s *Store) suspect(m *mending) {
	m.suspects = m.suspects[:0]
	for more := true; more; { // ends: the suspects only grow
		more = false
		for c := range s.claimants(m.words) {
			at, found := slices.BinarySearch(m.suspects, c)
			if found || !s.gone(c) || s.opt.Pool == nil && !s.fenced(c) {
				continue
			}
			more = true
			m.suspects = slices.Insert(m.suspects, at, c)
			t := s.vigil.intentOf(c)
			m.words = t.addWords(m.words)
		}
	}
}

// takeLeases takes all of them, or none and returns errBusy.
func (s *Store) takeLeases(m *mending) error {
	st := &s.shards[m.shard]
	b := s.ep.Batch()
	for _, w := range m.words {
		b.Read(s.leaseAt(m.shard, int(w)), 8)
	}
	err := s.do(stepTakeLeases, b)
	m.leases = m.leases[:0]
	for i := range b.Len() {
		m.leases = append(m.leases, 0)
		if err == nil {
			m.leases[i] = le.Uint64(b.Op(i).Buf)
		}
	}
	b.Release()
	if err != nil {
		return fmt.Errorf("read the repair leases of shard %d: %w", m.shard, err)
	}
	for i, w := range m.words {
		if err := s.evict(m.shard, w, m.leases[i]); err != nil {
			return err
		}
	}
	st.leased = append(st.leased[:0], m.words...) // should this be cut off
	took, err := s.swapLeases(stepTakeLeases, m, s.id)
	if err != nil {
		return fmt.Errorf("take the repair leases of shard %d: %w", m.shard, err)
	}
	if took < len(m.words) {
		if err := s.freeLeases(m); err != nil {
			return err
		}
		return errBusy
	}
	return nil
}

// evict makes sure that a lease can be taken from its holder.
func (s *Store) evict(shard int, word uint32, lease uint64) error {
	holder := leaseHolder(lease)
	if holder == 0 || holder == s.id || holder == s.condemned {
		return nil
	}
	v := &s.vigil
	i := slices.IndexFunc(v.leases, func(l leaseSeen) bool { return l.word == word })
	if i < 0 {
		i = len(v.leases)
		v.leases = append(v.leases, leaseSeen{word: word})
	}
	if s.opt.Pool == nil || !s.expired(holder, v.leases[i].see(lease, 0, v.clock)) {
		return errBusy
	}
	// The client that the pool lists by now has the lease, if it is still the same: see fence.
	list := s.ask()
	b := s.ep.Batch()
	defer b.Release()
	again := b.Read(s.leaseAt(shard, int(word)), 8)
	if err := s.do(stepTakeLeases, b); err != nil {
		return fmt.Errorf("read the repair lease of word %d of shard %d: %w", word, shard, err)
	}
	if le.Uint64(again.Buf) != lease {
		return errBusy
	}
	return s.revoke(list, holder)
}

// swapLeases gives those leases that are what they were last to a client (0: to none), and returns
// how many. Of the others it forgets what they were.
func (s *Store) swapLeases(step rdma.Step, m *mending, c rdma.ClientID) (took int, err error) {
	b := s.ep.Batch()
	for i, w := range m.words {
		if m.leases[i] != lostLease {
			b.CompareSwap(s.leaseAt(m.shard, int(w)), m.leases[i], leaseNext(m.leases[i], c))
		}
	}
	if err := s.do(step, b); err != nil {
		s.keepFlying(m.shard, b)
		return 0, err
	}
	n := 0
	for i := range m.words {
		if m.leases[i] == lostLease {
			continue
		}
		op := b.Op(n)
		n++
		if op.Swapped() {
			took++
			m.leases[i] = op.Value
		} else {
			m.leases[i] = lostLease
		}
	}
	b.Release()
	return took, nil
}

// lostLease is no lease's word: its counter does not get there in the pool's life.
const lostLease = leaseCount

// freeLeases gives leases back that are held.
func (s *Store) freeLeases(m *mending) error {
	if _, err := s.swapLeases(stepFreeLeases, m, 0); err != nil {
		return fmt.Errorf("free the repair leases of shard %d: %w", m.shard, err)
	}
	s.shards[m.shard].leased = s.shards[m.shard].leased[:0]
	return nil
}

// beat shows that the repair goes on.
func (s *Store) beat(m *mending) error {
	took, err := s.swapLeases(stepTakeLeases, m, s.id)
	if err == nil && took < len(m.words) {
		err = fmt.Errorf("a lease of it was taken: %w", rdma.ErrRevoked)
	}
	if err != nil {
		return fmt.Errorf("repair shard %d: %w", m.shard, err)
	}
	return nil
}

// fence fences the suspects off. One that has moved since is none.
//
// The client that an intent names which did not change since the pool listed its clients is the one
// in the list: a successor would have begun above an intent that was ended.
func (s *Store) fence(m *mending, list []rdma.Client) error {
	before := make([]uint64, len(m.suspects))
	for i, c := range m.suspects {
		before[i] = s.vigil.intentOf(c).state
	}
	if err := s.look(m.shard); err != nil {
		return err
	}
	kept := m.suspects[:0]
	m.states = m.states[:0]
	for i, c := range m.suspects {
		if t := s.vigil.intentOf(c); t.state != before[i] || !s.gone(c) {
			continue
		}
		kept, m.states = append(kept, c), append(m.states, before[i])
		if s.fenced(c) {
			continue
		}
		if err := s.revoke(list, c); err != nil {
			return err
		}
	}
	m.suspects = kept
	return nil
}

// last looks at what the suspects' intents are for good, now that they are fenced off: those of the
// same state, as another client may have brought the others to their ends.
func (s *Store) last(m *mending) error {
	if err := s.look(m.shard); err != nil {
		return err
	}
	kept := m.suspects[:0]
	for i, c := range m.suspects {
		switch t := s.vigil.intentOf(c); {
		case t.state != m.states[i], t.torn: // and it holds nothing
		case !t.within(m.words):
			return errAgain
		default:
			kept = append(kept, c)
		}
	}
	m.suspects = kept
	return nil
}

// revoke fences a client off that the pool had listed. One that it had not is no client's identity.
func (s *Store) revoke(list []rdma.Client, c rdma.ClientID) error {
	for _, l := range list {
		if l.ID == c {
			if err := s.opt.Pool.RevokeLife(l); err != nil {
				return fmt.Errorf("fence client %d off: %w", c, err)
			}
			s.stats.Fenced++
		}
	}
	return nil
}

// setRepair sets the words' repair bits. One that is set already was left by a client that did not
// bring its repair to its end.
func (s *Store) setRepair(m *mending) error { return s.turnRepair(m, lockRepair) }

// unsetRepair gives a repair up that waited for too long, before anything was changed.
func (s *Store) unsetRepair(m *mending) error { return s.turnRepair(m, 0) }

func (s *Store) turnRepair(m *mending, to uint64) error {
	b := s.ep.Batch()
	for _, w := range m.words {
		b.MaskedCompareSwap(s.lockAt(m.shard, int(w)), 0, 0, to, lockRepair)
	}
	return s.carry(stepTurnRepairBits, m.shard, b, "set repair bits in shard %d", m.shard)
}

// await returns when no client but the suspects claims a lock of the words. Without a pool to fence
// clients off, one that does not move keeps what it claims: see clear.
func (s *Store) await(m *mending) error {
	for r := s.pace; ; {
		if err := s.look(m.shard); err != nil {
			return err
		}
		waits := false
		for c := range s.claimants(m.words) {
			switch _, suspect := slices.BinarySearch(m.suspects, c); {
			case suspect, s.opt.Pool == nil && s.gone(c) && !s.fenced(c):
			case s.gone(c):
				return errAgain // with one suspect more
			default:
				waits = true
			}
		}
		switch {
		case !waits:
			return nil
		case s.left() == 0:
			return errWaited
		}
		if err := s.beat(m); err != nil {
			return err
		}
		r.Wait()
	}
}

// clear ends the suspects' intents, and makes the words zero, but for what others claim that cannot
// be fenced off: that is theirs, or is freed when they are recovered.
func (s *Store) clear(m *mending) error {
	b := s.ep.Batch()
	b.Chain()
	for _, c := range m.suspects {
		b.WriteWord(s.intentAt(m.shard, c), s.vigil.intentOf(c).state|idleBit)
	}
	for _, w := range m.words {
		keep := uint64(0)
		for c := range s.claimants(m.words) {
			if _, suspect := slices.BinarySearch(m.suspects, c); !suspect {
				t := s.vigil.intentOf(c)
				keep |= t.bits(w)
			}
		}
		b.MaskedCompareSwap(s.lockAt(m.shard, int(w)), 0, 0, 0, ^keep)
	}
	return s.carry(stepClearLocks, m.shard, b, "clear lock words of shard %d", m.shard)
}
