package rcuckoo

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// Repair frees what dead clients have locked, and completes what they had begun (sections 4.2 and
// 4.3). A client that is stuck repairs; so does the pool's master for a client that it recovers,
// and a client for its own operation of unknown outcome. For some lock words of a shard:
//
//  1. The suspects are the clients that have an intent which names one of the words, and that are
//     dead or have made no progress for a failure timer. The words that their intents name are
//     repaired, too, so other dead clients that have named these words are suspects as well.
//  2. Suspects are fenced off: no verb of theirs lands any more. (A client that gave its
//     operation up has already drained its verbs.) Holders of these words' repair leases that are
//     dead, or have made no progress for a failure timer, are fenced off as well. To ask the pool
//     and to fence off may take long when nodes do not answer. A client that does so has no
//     lease, and no intent or one that it has given up, so no other client takes it for dead.
//  3. The repairer takes the repair leases of all these words by CAS: all or none. If a suspect's
//     intent has changed by then, another client has repaired it, and it is no suspect any more.
//  4. It sets the words' repair bits: no client takes a lock in these words any more. A client
//     that meets the bit ends its intent and waits.
//  5. It waits until no intent but those of the suspects names one of the words.
//  6. It carries out the suspects' redos.
//  7. It ends the suspects' intents, makes the words zero, and then frees the leases.
//
// Why no client holds a lock of the words after 5: a client that holds a lock has had an intent
// that names the lock since before it took it (I1). After 4 no client takes one. So if an intent
// does not name the word at one moment after 4, its client holds no lock of the word until 7. The
// client of a torn intent holds none either (I2). So after 5 a bit that is set is a suspect's, or
// no client's: it is left from a repair that was not completed.
//
// A crash leaves leases that name the repairer. Another client fences it off, takes its leases
// and does every step again. Only the client that has the leases writes into the rows of these
// words, ends the intents that name them, or clears their bits. No identity that an intent or a
// lease still names is given to another client (see Mender.Recover).

// mending is a repair at work.
type mending struct {
	shard int
	// words are the lock words to repair, in ascending order. They only grow during a repair, and
	// include all words that the suspects' intents name.
	words []uint32
	// suspects are in ascending order.
	suspects []rdma.ClientID
	// states are those of the suspects' intents when they were fenced off, in the same order.
	states []uint64
	// leases are the leases of the words, as this worker read or wrote them last, in the same
	// order. LostLease: another client has changed it.
	leases []uint64
}

// errBusy is the error of a repair that another client has begun.
var errBusy = fmt.Errorf("another client repairs it: %w", errAgain)

// repair repairs lock words, and all words that the suspects' intents name. It returns nil when
// there is nothing to repair any more. The error wraps errAgain when another client repairs them,
// and rdma.ErrTimeout when the time is used up. After any other error shards[shard].leased are
// words the leases of which the worker may hold.
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

// repairOnce goes through the steps once. The error wraps errAgain when another client turned out
// to be dead meanwhile: it is a suspect of the next try. The leases are free afterwards, unless a
// verb failed.
func (s *Store) repairOnce(m *mending) error {
	if err := s.look(m.shard); err != nil {
		return err
	}
	list := s.askAbout() // between the two looks that fence compares
	s.suspect(m)
	if err := s.fence(m, list); err != nil {
		return err
	}
	if err := s.takeLeases(m); err != nil {
		return err
	}
	err := s.repairLeased(m)
	// Step 5 took too long, so nothing was changed: clients may take locks in these words again.
	if errors.Is(err, errWaited) {
		if undone := s.unsetRepair(m); undone != nil {
			return undone
		}
	}
	// After any other error a verb may still land, so the leases are kept until the shard is
	// settled.
	if err == nil || errors.Is(err, errAgain) || errors.Is(err, errWaited) {
		if freed := s.freeLeases(m); freed != nil {
			return freed
		}
	}
	return err
}

// repairLeased does steps 4 to 7, under the leases. From step 6 on the leases are renewed while a
// batch takes long. Steps 4 and 5 change no row and no intent, so a repair may be given up there.
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
	if s.table.Replicas > 1 {
		s = s.showing(func(s *Store) error { return s.beat(m) })
	}
	for _, c := range m.suspects {
		t := s.vigil.intentOf(c)
		if err := s.rollForward(m.shard, c, t.State>>1); err != nil {
			return err
		}
	}
	return s.clear(m)
}

// suspect does step 1: it finds the suspects of the last look, and the words that their intents
// name, until there are no more. Without a pool to fence clients off, only clients that are
// fenced off already are suspects.
func (s *Store) suspect(m *mending) {
	m.suspects = m.suspects[:0]
	for more := true; more; { // ends: the suspects only grow
		more = false
		for c := range s.claimants(m.words) {
			at, found := slices.BinarySearch(m.suspects, c)
			if found || !s.gone(c) || s.opt.Pool == nil && !s.fenced(c) {
				continue
			}
			more = true // its words may be named by other dead clients
			m.suspects = slices.Insert(m.suspects, at, c)
			t := s.vigil.intentOf(c)
			m.words = t.AddWords(m.words)
		}
	}
}

// takeLeases does step 3: it takes all leases, or none and returns errBusy. A crash in between
// leaves some of them, for another client to take.
func (s *Store) takeLeases(m *mending) error {
	st := &s.shards[m.shard]
	b := s.ep.Batch()
	for _, w := range m.words {
		b.Read(s.table.LeaseAt(m.shard, int(w)), 8)
	}
	err := s.do(steps.TakeLeases, b)
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
	// All holders are fenced off before the first CAS: then no holder acts under a lease that is
	// taken.
	for i, w := range m.words {
		if err := s.evict(m.shard, w, m.leases[i]); err != nil {
			return err
		}
	}
	st.leased = append(st.leased[:0], m.words...) // noted first, as the CASes may land though they fail
	// If another client has changed one of the leases, it repairs: all that were taken are freed
	// again, so two repairers do not wait for each other.
	took, err := s.swapLeases(steps.TakeLeases, m, s.id)
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

// evict makes sure that a lease can be taken from its holder: there is none, or it is fenced off.
// The error wraps errBusy while the holder may be alive.
func (s *Store) evict(shard int, word uint32, lease uint64) error {
	holder := table.LeaseHolder(lease)
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
	// If the lease is unchanged after the pool has listed its clients, the listed client is its
	// holder: see fence.
	list := s.ask()
	b := s.ep.Batch()
	defer b.Release()
	again := b.Read(s.table.LeaseAt(shard, int(word)), 8)
	if err := s.do(steps.TakeLeases, b); err != nil {
		return fmt.Errorf("read the repair lease of word %d of shard %d: %w", word, shard, err)
	}
	if le.Uint64(again.Buf) != lease {
		return errBusy
	}
	return s.revoke(list, holder)
}

// swapLeases gives the leases to a client (0: to none) that have not changed since the worker
// read or wrote them, and returns how many. The others become LostLease.
func (s *Store) swapLeases(step rdma.Step, m *mending, c rdma.ClientID) (took int, err error) {
	b := s.ep.Batch()
	for i, w := range m.words {
		if m.leases[i] != table.LostLease {
			b.CompareSwap(s.table.LeaseAt(m.shard, int(w)), m.leases[i], table.LeaseNext(m.leases[i], c))
		}
	}
	if err := s.do(step, b); err != nil {
		s.keepFlying(m.shard, b) // CASes may still land: the words stay in leased
		return 0, err
	}
	n := 0
	for i := range m.words {
		if m.leases[i] == table.LostLease {
			continue
		}
		op := b.Op(n)
		n++
		if op.Swapped() {
			took++
			m.leases[i] = op.Value
		} else {
			m.leases[i] = table.LostLease
		}
	}
	b.Release()
	return took, nil
}

// freeLeases frees the leases that the worker holds.
func (s *Store) freeLeases(m *mending) error {
	if _, err := s.swapLeases(steps.FreeLeases, m, 0); err != nil {
		return fmt.Errorf("free the repair leases of shard %d: %w", m.shard, err)
	}
	s.shards[m.shard].leased = s.shards[m.shard].leased[:0]
	return nil
}

// beat renews the leases: the heartbeat of a repair. The error wraps rdma.ErrRevoked if one was
// taken: another client took this one for dead.
func (s *Store) beat(m *mending) error {
	took, err := s.swapLeases(steps.TakeLeases, m, s.id)
	if err == nil && took < len(m.words) {
		err = fmt.Errorf("a lease of it was taken: %w", rdma.ErrRevoked)
	}
	if err != nil {
		return fmt.Errorf("repair shard %d: %w", m.shard, err)
	}
	return nil
}

// fence does step 2 for the suspects. A client that has made progress since the last look is no
// suspect.
//
// If an intent is unchanged since the pool listed its clients, it belongs to the listed client: a
// new holder of the identity would have written a higher sequence.
func (s *Store) fence(m *mending, list []rdma.Client) error {
	before := make([]uint64, len(m.suspects))
	for i, c := range m.suspects { // as they were before the pool listed its clients
		before[i] = s.vigil.intentOf(c).State
	}
	if err := s.look(m.shard); err != nil {
		return err
	}
	kept := m.suspects[:0]
	m.states = m.states[:0]
	for i, c := range m.suspects {
		if t := s.vigil.intentOf(c); t.State != before[i] || !s.gone(c) {
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

// last reads the final intents of the suspects, now that they are fenced off and the leases
// taken. Those with another state were completed by another client, and are no suspects any more.
// The error wraps errAgain if an intent names words that are not leased.
func (s *Store) last(m *mending) error {
	if err := s.look(m.shard); err != nil {
		return err
	}
	kept := m.suspects[:0]
	for i, c := range m.suspects {
		switch t := s.vigil.intentOf(c); {
		case t.State != m.states[i], t.Torn: // a torn one holds nothing (I2)
		case !t.Within(m.words):
			return errAgain
		default:
			kept = append(kept, c)
		}
	}
	m.suspects = kept
	return nil
}

// revoke fences off a client that the pool has listed. An identity that is not listed has no
// client that could post verbs.
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

// setRepair does step 4. A bit that is set already was left by a repair that was not completed.
func (s *Store) setRepair(m *mending) error { return s.turnRepair(m, table.LockRepair) }

// unsetRepair gives up a repair that has waited for too long, before any row or intent was changed.
func (s *Store) unsetRepair(m *mending) error { return s.turnRepair(m, 0) }

// turnRepair sets the repair bits of the words to a value, whatever their other bits are.
func (s *Store) turnRepair(m *mending, to uint64) error {
	b := s.ep.Batch()
	for _, w := range m.words {
		b.MaskedCompareSwap(s.table.LockAt(m.shard, int(w)), 0, 0, to, table.LockRepair)
	}
	return s.carry(steps.TurnRepairBits, m.shard, b, "set repair bits in shard %d", m.shard)
}

// await does step 5: it returns when no client but the suspects claims a lock of the words, and
// renews the leases meanwhile. Without a pool to fence clients off, a client that makes no
// progress keeps what it claims: see clear. The error wraps errAgain if another client turned out
// to be dead, and rdma.ErrTimeout if the time is used up.
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

// clear does step 7 up to the leases: it ends the suspects' intents, and makes the words zero.
// Bits that other clients claim stay set: these clients could not be fenced off, so they hold the
// locks, or the locks are freed when they are recovered. A crash in between leaves the leases,
// and so the rest of this to another client.
func (s *Store) clear(m *mending) error {
	b := s.ep.Batch()
	b.Chain()
	for _, c := range m.suspects {
		b.WriteWord(s.table.IntentAt(m.shard, c), s.vigil.intentOf(c).State|table.IdleBit)
	}
	for _, w := range m.words {
		keep := uint64(0)
		for c := range s.claimants(m.words) {
			if _, suspect := slices.BinarySearch(m.suspects, c); !suspect {
				t := s.vigil.intentOf(c)
				keep |= t.Bits(w)
			}
		}
		b.MaskedCompareSwap(s.table.LockAt(m.shard, int(w)), 0, 0, 0, ^keep)
	}
	return s.carry(steps.ClearLocks, m.shard, b, "clear lock words of shard %d", m.shard)
}
