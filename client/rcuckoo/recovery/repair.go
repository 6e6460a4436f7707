// Package recovery completes what clients of RCuckoo had begun that failed (sections 4.2 and 4.3):
// it repairs the lock words of others, settles the worker's own operations of unknown outcome, and
// for a pool's master recovers clients, makes new leaders and fills spares.
package recovery

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/rcuckoo/locks"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

var le = binary.LittleEndian

// Repair frees what dead clients have locked, and completes what they had begun (sections 4.2 and
// 4.3). A client that is stuck repairs; so does the pool's master for a client that it recovers,
// and a client for its own operation of unknown outcome. For some lock words of a shard:
//
//  1. The suspects are the clients that have an intent which names one of the words, and that
//     count as gone (locks.Detector.Gone): they gave up, are being recovered, or have made no
//     progress for a failure timer, or for half of one and the pool says that they are dead. The
//     words that their intents name are repaired, too, so other clients that have named these
//     words and are gone are suspects as well.
//  2. Suspects are fenced off: no verb of theirs lands any more. (A client that gave its
//     operation up has already drained its verbs.) Holders of these words' repair leases that
//     count as gone are fenced off as well. While the pool cannot list its clients, none can be
//     fenced off, and the repair has to wait. To ask the pool and to fence off may take long when
//     nodes do not answer. A client that does so has no lease, and no intent or one that it has
//     given up, so no other client takes it for dead.
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
// lease still names is given to another client (see Recoverer.Recover).

// Mending is a repair at work.
type Mending struct {
	// Shard is where the words are.
	Shard int
	// Words are the lock words to repair, in ascending order. They only grow during a repair, and
	// include all words that the suspects' intents name.
	Words []uint32
	// suspects are in ascending order.
	suspects []rdma.ClientID
	// states are those of the suspects' intents when they were fenced off, in the same order. An
	// intent with another state since is of another operation, or has ended.
	states []uint64
	// leases are the leases of the words, as this worker read or wrote them last, in the same
	// order. LostLease: another client has changed it.
	leases []uint64
	// set are the words of which this repair has set the repair bit. The others had it from a
	// repair that was cut off, maybe with locks that no intent names any more.
	set []uint32
}

// Repairer repairs lock words, one repair at a time.
type Repairer struct {
	detector *locks.Detector
	mending  Mending
}

// NewRepairer returns a repairer that finds failed clients by a detector.
func NewRepairer(d *locks.Detector) *Repairer { return &Repairer{detector: d} }

// errBusy is the error of a repair that has to wait: another client has begun it, or a client has
// to be fenced off while the pool's clients cannot be listed.
var errBusy = fmt.Errorf("its repair has to wait: %w", session.ErrAgain)

// Repair repairs lock words, and all words that the suspects' intents name. It returns nil when
// there is nothing to repair any more. The error wraps ErrAgain when another client repairs them,
// or a client has to be fenced off while the pool's clients cannot be listed, and rdma.ErrTimeout
// when the time is used up. After any other error shards[shard].leased are words the leases of
// which the worker may hold.
func (p *Repairer) Repair(o *session.Op, shard int, words []uint32) error {
	m := &p.mending
	m.Shard, m.Words, m.set = shard, append(m.Words[:0], words...), m.set[:0]
	// Each try looks for suspects anew. The words of earlier tries stay.
	for r := o.Pace; ; {
		err := p.repairOnce(o, m)
		switch {
		case err == nil:
			o.Stats.Repairs++
			return nil
		case !errors.Is(err, session.ErrAgain) || errors.Is(err, errBusy):
			return err
		case !r.Again():
			return session.ErrWaited
		}
	}
}

// repairOnce goes through the steps once. The error wraps ErrAgain when another client turned out
// to be dead meanwhile: it is a suspect of the next try. The leases are free afterwards, unless a
// verb failed.
func (p *Repairer) repairOnce(o *session.Op, m *Mending) error {
	if err := p.detector.Look(o, m.Shard); err != nil {
		return err
	}
	list := p.detector.AskAbout(o) // between the two looks that fence compares
	p.suspect(o, m)
	if err := p.fence(o, m, list); err != nil {
		return err
	}
	if err := p.TakeLeases(o, m); err != nil {
		return err
	}
	err := p.repairLeased(o, m)
	// It ended by step 5, so nothing was changed: clients may take locks in these words again. The
	// next try may not get as far, so the bits are unset while the leases are held.
	early := errors.Is(err, session.ErrAgain) || errors.Is(err, session.ErrWaited)
	if early {
		if undone := p.UnsetRepair(o, m); undone != nil {
			return undone
		}
	}
	// After any other error a verb may still land, so the leases are kept until the shard is
	// settled.
	if err == nil || early {
		if freed := p.FreeLeases(o, m); freed != nil {
			return freed
		}
	}
	return err
}

// repairLeased does steps 4 to 7, under the leases. From step 6 on the leases are renewed while a
// batch takes long. Steps 4 and 5 change no row and no intent, so a repair may be given up there.
func (p *Repairer) repairLeased(o *session.Op, m *Mending) error {
	if err := p.last(o, m); err != nil {
		return err
	}
	if err := p.SetRepair(o, m); err != nil {
		return err
	}
	if err := p.await(o, m); err != nil {
		return err
	}
	if o.Table.Replicas > 1 {
		o = o.WithHeartbeat(func(o *session.Op) error { return p.Renew(o, m) })
	}
	for _, c := range m.suspects {
		t := p.detector.IntentOf(c)
		// The intent has the sequence of the only redo that counts: earlier ones were completed.
		if err := rollForward(o, m.Shard, c, t.State>>1); err != nil {
			return err
		}
	}
	return p.clear(o, m)
}

// suspect does step 1: it finds the suspects of the last look, and the words that their intents
// name, until there are no more. Without a pool to fence clients off, only clients that are
// fenced off already are suspects.
func (p *Repairer) suspect(o *session.Op, m *Mending) {
	m.suspects = m.suspects[:0]
	for more := true; more; { // ends: the suspects only grow
		more = false
		for c := range p.detector.Claimants(m.Words) {
			at, found := slices.BinarySearch(m.suspects, c)
			if found || !p.detector.Gone(c) || o.Opt.Pool == nil && !p.detector.Fenced(c) {
				continue
			}
			more = true // its words may be named by other dead clients
			m.suspects = slices.Insert(m.suspects, at, c)
			t := p.detector.IntentOf(c)
			m.Words = t.AddWords(m.Words)
		}
	}
}

// TakeLeases does step 3: it takes all leases, or none and returns errBusy. The words whose leases
// may be held are noted in the shard's state ahead of the CASes. So if a CAS fails without an
// answer, the worker settles these words before its next operation in the shard. A crash in between
// leaves some of the leases, for another client to take.
func (p *Repairer) TakeLeases(o *session.Op, m *Mending) error {
	st := &o.Shards[m.Shard]
	b := o.EP.Batch()
	for _, w := range m.Words {
		b.Read(o.Table.LeaseAt(m.Shard, int(w)), 8)
	}
	err := o.Do(steps.TakeLeases, b)
	m.leases = m.leases[:0]
	for i := range b.Len() {
		m.leases = append(m.leases, 0)
		if err == nil {
			m.leases[i] = le.Uint64(b.Op(i).Buf)
		}
	}
	b.Release()
	if err != nil {
		return fmt.Errorf("read the repair leases of shard %d: %w", m.Shard, err)
	}
	// All holders are fenced off before the first CAS: then no holder acts under a lease that is
	// taken.
	for i, w := range m.Words {
		if err := p.evict(o, m.Shard, w, m.leases[i]); err != nil {
			return err
		}
	}
	st.Leased = append(st.Leased[:0], m.Words...) // noted first, as the CASes may land though they fail
	// If another client has changed one of the leases, it repairs: all that were taken are freed
	// again, so two repairers do not wait for each other.
	took, err := p.swapLeases(o, steps.TakeLeases, m, o.ID)
	if err != nil {
		return fmt.Errorf("take the repair leases of shard %d: %w", m.Shard, err)
	}
	if took < len(m.Words) {
		if err := p.FreeLeases(o, m); err != nil {
			return err
		}
		return errBusy
	}
	return nil
}

// evict makes sure that a lease can be taken from its holder: there is none, or it is fenced off.
// The error wraps errBusy while the holder may be alive.
func (p *Repairer) evict(o *session.Op, shard int, word uint32, lease uint64) error {
	holder := table.LeaseHolder(lease)
	if holder == 0 || holder == o.ID || p.detector.Condemned[holder] {
		return nil
	}
	if o.Opt.Pool == nil || !p.detector.Expired(holder, p.detector.LeaseStill(word, lease)) {
		return errBusy
	}
	// If the lease is unchanged after the pool has listed its clients, the listed client is its
	// holder: see fence.
	list := p.detector.Ask(o)
	b := o.EP.Batch()
	defer b.Release()
	again := b.Read(o.Table.LeaseAt(shard, int(word)), 8)
	if err := o.Do(steps.TakeLeases, b); err != nil {
		return fmt.Errorf("read the repair lease of word %d of shard %d: %w", word, shard, err)
	}
	if le.Uint64(again.Buf) != lease {
		return errBusy
	}
	return p.revoke(o, list, holder)
}

// swapLeases gives the leases to a client (0: to none) that have not changed since the worker
// read or wrote them, and returns how many. The others become LostLease. A lease is renewed by
// the same CAS, with its holder as the next one: the counter of the lease grows.
func (p *Repairer) swapLeases(o *session.Op, step rdma.Step, m *Mending, c rdma.ClientID) (took int, err error) {
	b := o.EP.Batch()
	for i, w := range m.Words {
		if m.leases[i] != table.LostLease {
			b.CompareSwap(o.Table.LeaseAt(m.Shard, int(w)), m.leases[i], table.LeaseNext(m.leases[i], c))
		}
	}
	if err := o.Do(step, b); err != nil {
		o.KeepFlying(m.Shard, b) // CASes may still land: the words stay in leased
		return 0, err
	}
	n := 0
	for i := range m.Words {
		if m.leases[i] == table.LostLease {
			continue
		}
		// Op n is of the n-th lease that was not lost.
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

// FreeLeases frees the leases that the worker holds.
func (p *Repairer) FreeLeases(o *session.Op, m *Mending) error {
	if _, err := p.swapLeases(o, steps.FreeLeases, m, 0); err != nil {
		return fmt.Errorf("free the repair leases of shard %d: %w", m.Shard, err)
	}
	o.Shards[m.Shard].Leased = o.Shards[m.Shard].Leased[:0]
	return nil
}

// Renew renews the leases: the heartbeat of a repair. The error wraps rdma.ErrRevoked if one was
// taken: another client took this one for dead.
func (p *Repairer) Renew(o *session.Op, m *Mending) error {
	took, err := p.swapLeases(o, steps.TakeLeases, m, o.ID)
	if err == nil && took < len(m.Words) {
		err = fmt.Errorf("a lease of it was taken: %w", rdma.ErrRevoked)
	}
	if err != nil {
		return fmt.Errorf("repair shard %d: %w", m.Shard, err)
	}
	return nil
}

// fence does step 2 for the suspects. A client that has made progress since the last look is no
// suspect.
//
// If an intent is unchanged since the pool listed its clients, it belongs to the listed client: a
// new holder of the identity would have written a higher sequence.
func (p *Repairer) fence(o *session.Op, m *Mending, list []rdma.Client) error {
	before := make([]uint64, len(m.suspects))
	for i, c := range m.suspects { // as they were before the pool listed its clients
		before[i] = p.detector.IntentOf(c).State
	}
	if err := p.detector.Look(o, m.Shard); err != nil {
		return err
	}
	kept := m.suspects[:0]
	m.states = m.states[:0]
	for i, c := range m.suspects {
		if t := p.detector.IntentOf(c); t.State != before[i] || !p.detector.Gone(c) {
			continue
		}
		kept, m.states = append(kept, c), append(m.states, before[i])
		if p.detector.Fenced(c) {
			continue
		}
		if err := p.revoke(o, list, c); err != nil {
			return err
		}
	}
	m.suspects = kept
	return nil
}

// last reads the final intents of the suspects, now that they are fenced off and the leases
// taken. Those with another state were completed by another client, and are no suspects any more.
// The error wraps ErrAgain if an intent names words that are not leased.
func (p *Repairer) last(o *session.Op, m *Mending) error {
	if err := p.detector.Look(o, m.Shard); err != nil {
		return err
	}
	kept := m.suspects[:0]
	for i, c := range m.suspects {
		switch t := p.detector.IntentOf(c); {
		case t.State != m.states[i], t.Torn: // a torn one holds nothing (I2)
		case !t.Within(m.Words):
			return session.ErrAgain
		default:
			kept = append(kept, c)
		}
	}
	m.suspects = kept
	return nil
}

// revoke fences off a client that the pool has listed. An identity that is not listed has no
// client that could post verbs. Without a list (nil) the error is errBusy: the client may be alive.
func (p *Repairer) revoke(o *session.Op, list []rdma.Client, c rdma.ClientID) error {
	if list == nil {
		return errBusy
	}
	for _, l := range list {
		if l.ID == c {
			// Once it has returned, no verb of the client lands any more.
			if err := o.Opt.Pool.RevokeLife(l); err != nil {
				return fmt.Errorf("fence client %d off: %w", c, err)
			}
			o.Stats.Fenced++
		}
	}
	return nil
}

// SetRepair does step 4. A bit that is set already was left by a repair that was not completed.
func (p *Repairer) SetRepair(o *session.Op, m *Mending) error {
	b := addRepairBits(o, m.Shard, m.Words, table.LockRepair)
	if err := o.Do(steps.TurnRepairBits, b); err != nil {
		return o.Failed(m.Shard, b, fmt.Errorf("set repair bits in shard %d: %w", m.Shard, err))
	}
	for i, w := range m.Words {
		if b.Op(i).Result&table.LockRepair == 0 {
			m.set = append(m.set, w)
		}
	}
	b.Release()
	return nil
}

// UnsetRepair gives up a repair before it has changed any row or intent. The leases must be held:
// without them another repairer may rely on a bit that this one has set. Bits that it has not set
// stay: without them clients that wait for a lock which no intent names would take each other for
// its holders, and none would repair the word.
func (p *Repairer) UnsetRepair(o *session.Op, m *Mending) error {
	if len(m.set) == 0 {
		return nil
	}
	b := addRepairBits(o, m.Shard, m.set, 0)
	m.set = m.set[:0]
	return o.Carry(steps.TurnRepairBits, m.Shard, b, "unset repair bits in shard %d", m.Shard)
}

// addRepairBits sets the repair bits of words to a value, whatever their other bits are.
func addRepairBits(o *session.Op, shard int, words []uint32, to uint64) *rdma.Batch {
	b := o.EP.Batch()
	for _, w := range words {
		// Nothing is compared, so each CAS swaps. It changes the repair bit alone, as living
		// clients release their locks meanwhile.
		b.MaskedCompareSwap(o.Table.LockAt(shard, int(w)), 0, 0, to, table.LockRepair)
	}
	return b
}

// await does step 5: it returns when no client but the suspects claims a lock of the words, and
// renews the leases meanwhile. Without a pool to fence clients off, a client that makes no
// progress keeps what it claims: see clear. The error wraps ErrAgain if another client turned out
// to be dead, and rdma.ErrTimeout if the time is used up.
func (p *Repairer) await(o *session.Op, m *Mending) error {
	for r := o.Pace; ; {
		if err := p.detector.Look(o, m.Shard); err != nil {
			return err
		}
		waits := false
		for c := range p.detector.Claimants(m.Words) {
			switch _, suspect := slices.BinarySearch(m.suspects, c); {
			case suspect, o.Opt.Pool == nil && p.detector.Gone(c) && !p.detector.Fenced(c):
			case p.detector.Gone(c):
				return session.ErrAgain // with one suspect more
			default:
				// It is alive: it gets its other locks and releases all, or meets the repair
				// bit. In both cases it ends its intent.
				waits = true
			}
		}
		switch {
		case !waits:
			return nil
		case o.Left() == 0:
			return session.ErrWaited
		}
		// By the leases other clients see that the repairer makes progress: see evict.
		if err := p.Renew(o, m); err != nil {
			return err
		}
		r.Wait()
	}
}

// clear does step 7 up to the leases: it ends the suspects' intents, and makes the words zero.
// Bits that other clients claim stay set: these clients could not be fenced off, so they hold the
// locks, or the locks are freed when they are recovered. A crash in between leaves the leases,
// and so the rest of this to another client.
//
// It is one chain, with the intents first: when a lock becomes free, no intent of a dead client
// names it any more. The swap clears the repair bits, too: from then on clients take locks in
// these words again.
func (p *Repairer) clear(o *session.Op, m *Mending) error {
	b := o.EP.Batch()
	b.Chain()
	for _, c := range m.suspects {
		b.WriteWord(o.Table.IntentAt(m.Shard, c), p.detector.IntentOf(c).State|table.IdleBit)
	}
	for _, w := range m.Words {
		keep := uint64(0)
		for c := range p.detector.Claimants(m.Words) {
			if _, suspect := slices.BinarySearch(m.suspects, c); !suspect {
				t := p.detector.IntentOf(c)
				keep |= t.Bits(w)
			}
		}
		b.MaskedCompareSwap(o.Table.LockAt(m.Shard, int(w)), 0, 0, 0, ^keep)
	}
	return o.Carry(steps.ClearLocks, m.Shard, b, "clear lock words of shard %d", m.Shard)
}
