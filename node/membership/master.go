package membership

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// lastChange is when a version of the master's record was first seen, on this process's clock.
// Clocks of machines cannot be compared. But every clock can measure for how long a record has not
// changed.
type lastChange struct {
	version uint64
	// at is not before the owner of the tenure began to count its lease, since the owner reads its
	// clock before it writes the record.
	at time.Duration
}

// tenure is what this process knows of a tenure that it began or tried to begin.
type tenure struct {
	// life is that of the owner, and epoch that of the tenure. Together with the owner they name
	// the tenure: no two have the same.
	life, epoch uint64
	// until is the end of the lease as the owner was told last. The record's may be later, after a
	// renewal of unknown outcome.
	until time.Duration
	// told: the owner knows that it is master. It is false while the Swap that began the tenure is
	// under way or of unknown outcome.
	told bool
}

// firstSeen returns when this process first saw version, or now if it sees it first. The caller
// reads now after it has loaded the record.
func (b *Registry) firstSeen(version uint64, now time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version < b.seen.version {
		return now // another worker has seen a later version meanwhile; now only waits longer
	}
	if version > b.seen.version {
		b.seen = lastChange{version, now}
	}
	return b.seen.at
}

// ours returns what is known of m if this process began that tenure. Only then Until is a time on
// this process's clock.
func (b *Registry) ours(m masterRecord) (tenure, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, ok := b.mine[m.Owner]
	return t, ok && t.life == m.Life && t.epoch == m.Epoch
}

// note keeps what is known of the owner's latest tenure.
func (b *Registry) note(owner rdma.ClientID, t tenure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mine[owner] = t
}

// judge reports whether a tenure lasts, and until when at the latest on this process's clock.
//
// A tenure of this process lasts until its own Until. A tenure of another process lasts while its
// record has been unchanged for less than ExpelWait, and its owner has the identity with that life.
// A mark that the owner was fenced off does not end its tenure.
func (b *Registry) judge(m masterRecord, version uint64) (r rdma.Role, lasts bool, err error) {
	now := b.o.Now()
	if m.Owner == 0 {
		return rdma.Role{}, false, nil
	}
	r = m.role()
	if _, ours := b.ours(m); ours {
		return r, now < r.Until, nil
	}
	r.Until = b.firstSeen(version, now) + ExpelWait(m.Lease)
	if now >= r.Until {
		return r, false, nil
	}
	c, _, err := load[clientRecord](b, clientKey(m.Owner))
	return r, c.InUse && !c.Closed && c.Life == m.Life, err
}

// Master returns the role of the pool's master, and how long its lease lasts yet at the most. It
// reports false if there is no master.
func (b *Registry) Master() (r rdma.Role, left time.Duration, ok bool, err error) {
	m, version, err := load[masterRecord](b, masterKey)
	if err == nil {
		r, ok, err = b.judge(m, version)
	}
	if err != nil {
		return rdma.Role{}, 0, false, fmt.Errorf("master of the pool: %w", err)
	}
	return r, max(r.Until-b.o.Now(), 0), ok, nil
}

// TryMaster makes owner the pool's master for the given time when there is none. It reports false
// if another client is master: then the role names that client, and the latest end of its lease on
// the caller's clock. A tenure of another process is over when its record was seen unchanged for
// ExpelWait of its lease, or at once when its owner's identity was given back.
//
// It takes three steps. Each relies on the one before, and a crash leaves what the next candidate
// completes:
//
//  1. Fence off the life of the last owner. Its verbs and calls have no effect any more. A crash
//     behind it leaves the old record, and the next candidate fences the same life off again.
//  2. Claim the configuration for the new tenure's number. From now on no SwapConfig of the last
//     owner succeeds. A crash behind it leaves a configuration that no master can replace until the
//     next tenure, which has the same number, has begun.
//  3. Begin the tenure by a Swap of the record that step 1 was decided on. If another candidate was
//     faster the record has another version, and the Swap fails.
//
// An error leaves open whether the tenure began. If it began, the next TryMaster of the same owner
// returns it, while its lease lasts.
func (b *Registry) TryMaster(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
	err := b.lease(owner, lease)
	if err != nil {
		return rdma.Role{}, false, fmt.Errorf("make client %d master: %w", owner, err)
	}
	if r, ok := b.watched(owner); ok {
		return r, false, nil
	}
	m, version, err := load[masterRecord](b, masterKey)
	if err == nil {
		var r rdma.Role
		var lasts bool
		if r, lasts, err = b.judge(m, version); err == nil && lasts {
			return r, m.Owner == owner && b.adopt(m), nil
		}
	}
	var life uint64
	if err == nil {
		life, err = b.lifeOf(owner)
	}
	beyond := m.FenceEpoch
	if err == nil && m.Owner != 0 && m.Life != 0 && (m.Owner != owner || m.Life != life) {
		beyond, err = b.succeed(m)
	}
	if err != nil {
		return rdma.Role{}, false, fmt.Errorf("make client %d master: %w", owner, err)
	}
	if err := b.claimConfig(m.Epoch + 1); err != nil {
		return rdma.Role{}, false, fmt.Errorf("make client %d master: %w", owner, err)
	}
	next := masterRecord{
		Owner: owner, Life: life, Epoch: m.Epoch + 1, Lease: lease, Turn: m.Turn + 1, FenceEpoch: beyond,
	}
	return b.begin(version, next)
}

// succeed fences the last master off, and returns the epoch that its successor has to reach first,
// 0 if none.
//
// It does not wait for nodes that do not answer. Otherwise a master that died together with a node
// would never have a successor, and only a successor can expel that node. Such a node may still
// execute verbs of the last master, until the fence of an epoch behind the present one ends them.
// The last master cannot join that epoch: the registry says already that it was fenced off. An
// earlier FenceEpoch that was not reached yet stays: max.
func (b *Registry) succeed(m masterRecord) (beyond uint64, err error) {
	err = b.o.Revoke(rdma.Client{ID: m.Owner, Life: m.Life})
	if err == nil {
		return m.FenceEpoch, nil
	}
	if errors.Is(err, rdma.ErrNodeDown) && !errors.Is(err, ErrUnreachable) {
		var v rdma.View
		if v, _, err = b.View(); err == nil {
			return max(m.FenceEpoch, v.Epoch+1), nil
		}
	}
	return 0, fmt.Errorf("fence off client %d, life %d, whose tenure is over: %w", m.Owner, m.Life, err)
}

// watched returns another client's tenure that lasts yet as far as the watch knows, without asking
// the Store. It reports false if the watch knows of none; then the Store is asked.
//
// The time at which the watch saw the record counts as the first sight of it. Otherwise a candidate
// would begin to count ExpelWait only with its first question to the Store, and wait twice.
func (b *Registry) watched(owner rdma.ClientID) (rdma.Role, bool) {
	if b.o.Glance == nil {
		return rdma.Role{}, false
	}
	record, since, ok := b.o.Glance()
	if !ok || record.Version == 0 {
		return rdma.Role{}, false
	}
	m, err := decode[masterRecord](masterKey, record.Value, &b.o)
	if err != nil || m.Owner == 0 || m.Owner == owner {
		return rdma.Role{}, false
	}
	r := m.role()
	r.Until = ExpelWait(m.Lease) + b.firstSeen(record.Version, since)
	return r, b.o.Now() < r.Until
}

// adopt reports whether m is a tenure of this process that its owner was not told of yet, and marks
// it as told. So each tenure makes one TryMaster return true.
func (b *Registry) adopt(m masterRecord) bool {
	t, ours := b.ours(m)
	if !ours || t.told {
		return false
	}
	t.told, t.until = true, m.Until
	b.note(m.Owner, t)
	return true
}

// begin replaces the given version of the record by a new tenure. The tenure is noted before the
// Swap: if its outcome is unknown, the record that is read afterwards decides, here or in the next
// TryMaster.
func (b *Registry) begin(version uint64, next masterRecord) (rdma.Role, bool, error) {
	// The owner counts from before the Swap, others from when they see the record, which is later.
	next.Until = b.o.Now() + next.Lease
	b.note(next.Owner, tenure{life: next.Life, epoch: next.Epoch})
	ok, err := b.swap(masterKey, version, &next)
	// A tenure that is over before its owner knows of it has nothing in flight, so it may be
	// resigned.
	if ok && b.o.Now() >= next.Until {
		b.Resign(next.role())
		return next.role(), false, nil
	}
	if ok {
		b.adopt(next)
		return next.role(), true, nil
	}
	now, version, again := load[masterRecord](b, masterKey)
	if again != nil {
		return rdma.Role{}, false, fmt.Errorf("make client %d master: %w", next.Owner, errors.Join(err, again))
	}
	r, lasts, again := b.judge(now, version)
	switch {
	case again == nil && lasts && now == next && b.adopt(next):
		return r, true, nil
	case again == nil && err == nil:
		return r, false, nil
	}
	return rdma.Role{}, false, fmt.Errorf("make client %d master: %w", next.Owner, errors.Join(err, again))
}

// Renew prolongs a tenure of this process. It reports false if the tenure is over; then another
// client may be master. An error leaves open whether the tenure was prolonged. The owner is master
// until r.Until at least, and may call Renew again.
func (b *Registry) Renew(r rdma.Role, lease time.Duration) (rdma.Role, bool, error) {
	err := b.lease(r.Owner, lease)
	var m masterRecord
	var version uint64
	if err == nil {
		m, version, err = load[masterRecord](b, masterKey)
	}
	if err != nil {
		return rdma.Role{}, false, fmt.Errorf("prolong the tenure of client %d in epoch %d: %w", r.Owner, r.Epoch, err)
	}
	t, ours := b.ours(m)
	next := m
	next.Until, next.Lease, next.Turn = b.o.Now()+lease, lease, m.Turn+1
	// m may last longer than r, after a renewal of unknown outcome: it is the same tenure. The last
	// condition is that the lease has not ended yet on the owner's clock: next.Until-lease is now.
	if ours && m.Owner == r.Owner && m.Epoch == r.Epoch && next.Until-lease < m.Until {
		ok, err := b.swap(masterKey, version, &next)
		if err != nil {
			return rdma.Role{}, false, fmt.Errorf("prolong the tenure of client %d in epoch %d: %w", r.Owner, r.Epoch,
				err)
		}
		if ok {
			t.told, t.until = true, next.Until
			b.note(r.Owner, t)
			return next.role(), true, nil
		}
		m, version, err = load[masterRecord](b, masterKey)
		if err != nil {
			return rdma.Role{}, false, fmt.Errorf("master of the pool: %w", err)
		}
	}
	now, _, err := b.judge(m, version)
	return now, false, err
}

// Resign ends a tenure early, if it is still the one that r names. The caller has nothing in flight
// as master. Errors are passed over: a tenure that could not be ended, since the registry is out of
// reach, runs out, and its owner is fenced off then.
func (b *Registry) Resign(r rdma.Role) {
	_ = edit(b, masterKey, func(m *masterRecord) (bool, error) {
		t, ours := b.ours(*m)
		// The record's Until is later than r's after a renewal of which the owner was not told.
		as := m.Until == r.Until || ours && t.told && t.until == r.Until
		if m.Owner == 0 || m.Owner != r.Owner || m.Epoch != r.Epoch || !as {
			return false, nil
		}
		m.end()
		return true, nil
	})
}

// end makes the record one of no tenure. Epoch stays, since the next tenure's is one more, and so
// do Lease, which has to stay valid, and FenceEpoch.
func (m *masterRecord) end() { m.Owner, m.Life, m.Until, m.Turn = 0, 0, 0, m.Turn+1 }

// endOf ends c's tenure, if c has one or may have begun one. The caller releases c's identity next.
// An error is harmless: a tenure of which the owner's identity is free is over.
func (b *Registry) endOf(c rdma.Client) error {
	b.mu.Lock()
	t, tried := b.mine[c.ID]
	b.mu.Unlock()
	if !tried || t.life != c.Life {
		return nil
	}
	err := edit(b, masterKey, func(m *masterRecord) (bool, error) {
		if m.Owner != c.ID || m.Life != c.Life {
			return false, nil
		}
		m.end()
		return true, nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	// A Swap that lands later begins a tenure that is over at once: the identity is given back
	// next.
	delete(b.mine, c.ID)
	return err
}

// lease returns what is wrong with a lease for owner. The error wraps rdma.ErrAccess.
func (b *Registry) lease(owner rdma.ClientID, lease time.Duration) error {
	if err := b.knownClient(owner); err != nil {
		return err
	}
	if lease < MinLease || lease > MaxLease {
		return fmt.Errorf("a lease of %v: want %v to %v: %w", lease, MinLease, MaxLease, rdma.ErrAccess)
	}
	return nil
}

// lifeOf returns the present life of an identity, 0 if it is free. The lives that this Registry
// handed out are known without a question to the Store.
func (b *Registry) lifeOf(c rdma.ClientID) (uint64, error) {
	b.mu.Lock()
	life := b.held[c]
	b.mu.Unlock()
	if life != 0 {
		return life, nil
	}
	r, _, err := load[clientRecord](b, clientKey(c))
	if !r.InUse {
		return 0, err
	}
	return r.Life, err
}
