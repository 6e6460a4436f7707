package board

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// sighting is when a version of the master's record was first seen, on this process's clock. Clocks
// of machines cannot be compared, but that a record did not change for a while can be told with any
// of them.
type sighting struct {
	version uint64
	at      time.Duration
}

// tenure is what this process knows of one that it began, or tried to.
type tenure struct {
	life, epoch uint64
	until       time.Duration // as its owner was told last
	told        bool          // its owner knows of it; a Swap of unknown fate began those that it does not know of
}

// sight returns when version was first seen. It is called with a time after the record was loaded:
// its owner counts from before it wrote it.
func (b *Board) sight(version uint64, now time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version < b.seen.version {
		return now // another worker has seen a later one meanwhile
	}
	if version > b.seen.version {
		b.seen = sighting{version, now}
	}
	return b.seen.at
}

// ours returns what is known of m if this process began that tenure: only then its Until is on this
// clock.
func (b *Board) ours(m masterRecord) (tenure, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, ok := b.mine[m.Owner]
	return t, ok && t.life == m.Life && t.epoch == m.Epoch
}

func (b *Board) note(owner rdma.ClientID, t tenure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mine[owner] = t
}

// judge reports whether a tenure lasts, and until when at the latest on this process's clock.
func (b *Board) judge(m masterRecord, version uint64) (r rdma.Role, lasts bool, err error) {
	now := b.o.Now()
	if m.Owner == 0 {
		return rdma.Role{}, false, nil
	}
	r = m.role()
	if _, ours := b.ours(m); ours {
		return r, now < r.Until, nil
	}
	r.Until = b.sight(version, now) + ExpelWait(m.Lease)
	if now >= r.Until {
		return r, false, nil
	}
	c, _, err := load[clientRecord](b, clientKey(m.Owner))
	return r, c.InUse && !c.Closed && c.Life == m.Life, err
}

// Master returns the role of the pool's master, and for how long yet at the latest; false: there is
// none.
func (b *Board) Master() (r rdma.Role, left time.Duration, ok bool, err error) {
	m, version, err := load[masterRecord](b, masterKey)
	if err == nil {
		r, ok, err = b.judge(m, version)
	}
	if err != nil {
		return rdma.Role{}, 0, false, fmt.Errorf("master of the pool: %w", err)
	}
	return r, max(r.Until-b.o.Now(), 0), ok, nil
}

// TryMaster makes owner the pool's master for the given time when there is none. False: another
// client is master, and the role names it and the time until when it is at the latest on the
// caller's clock. A tenure of another process is over when its record was seen unchanged for
// ExpelWait of its lease, or at once when its owner's identity was given back. Its owner's life is
// revoked before another owner begins. A crash between the two leaves the old record, and the next
// candidate revokes again.
//
// An error leaves open whether the tenure began. If it did, the next TryMaster of the same owner
// returns it.
func (b *Board) TryMaster(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
	err := b.lease(owner, lease)
	if err != nil {
		return rdma.Role{}, false, fmt.Errorf("make client %d master: %w", owner, err)
	}
	if r, ok := b.glance(owner); ok {
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
	beyond := m.Beyond
	if err == nil && m.Owner != 0 && m.Life != 0 && (m.Owner != owner || m.Life != life) {
		beyond, err = b.succeed(m)
	}
	if err != nil {
		return rdma.Role{}, false, fmt.Errorf("make client %d master: %w", owner, err)
	}
	if err := b.claimConfig(m.Epoch + 1); err != nil {
		return rdma.Role{}, false, fmt.Errorf("make client %d master: %w", owner, err)
	}
	next := masterRecord{Owner: owner, Life: life, Epoch: m.Epoch + 1, Lease: lease, Turn: m.Turn + 1, Beyond: beyond}
	return b.begin(version, next)
}

// succeed fences the last master off, and returns the epoch that its successor has to reach first.
// It does not wait for nodes that do not answer. Otherwise a master that died together with a node
// would never have a successor, and only a successor can expel that node. The last master cannot
// join the epochs behind the view's of now: the board says already that it was fenced off.
func (b *Board) succeed(m masterRecord) (beyond uint64, err error) {
	err = b.o.Revoke(rdma.Client{ID: m.Owner, Life: m.Life})
	if err == nil {
		return m.Beyond, nil
	}
	if errors.Is(err, rdma.ErrNodeDown) && !errors.Is(err, ErrUnreachable) {
		var v rdma.View
		if v, _, err = b.View(); err == nil {
			return max(m.Beyond, v.Epoch+1), nil
		}
	}
	return 0, fmt.Errorf("fence off client %d, life %d, whose tenure is over: %w", m.Owner, m.Life, err)
}

// glance tells, without asking the Store, of another client's tenure that lasts yet as far as a
// watch knows. What the watch saw counts as seen: a candidate that began to wait only once it asks
// the Store would wait twice.
func (b *Board) glance(owner rdma.ClientID) (rdma.Role, bool) {
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
	r.Until = ExpelWait(m.Lease) + b.sight(record.Version, since)
	return r, b.o.Now() < r.Until
}

// adopt returns true if m is a tenure of this process that its owner has not been told of yet.
func (b *Board) adopt(m masterRecord) bool {
	t, ours := b.ours(m)
	if !ours || t.told {
		return false
	}
	t.told, t.until = true, m.Until
	b.note(m.Owner, t)
	return true
}

// begin replaces the record by a new tenure.
func (b *Board) begin(version uint64, next masterRecord) (rdma.Role, bool, error) {
	next.Until = b.o.Now() + next.Lease // others count from when they see it, which is later
	b.note(next.Owner, tenure{life: next.Life, epoch: next.Epoch})
	ok, err := b.swap(masterKey, version, &next)
	if ok && b.o.Now() >= next.Until { // over before its owner knew of it; nothing of it is in flight
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

// Renew prolongs a tenure of this process; false: it is over, and another client may be master. An
// error leaves open whether it was prolonged; the owner is master until r.Until at least, and may
// try again.
func (b *Board) Renew(r rdma.Role, lease time.Duration) (rdma.Role, bool, error) {
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
	// A renewal whose fate was unknown may have prolonged m beyond r: it is the same tenure.
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

// Resign ends a tenure early, if it is still as r says. One that could not be ended, since the
// board is out of reach, runs out, and its owner is fenced off then.
func (b *Board) Resign(r rdma.Role) {
	_ = edit(b, masterKey, func(m *masterRecord) (bool, error) {
		t, ours := b.ours(*m)
		as := m.Until == r.Until || ours && t.told && t.until == r.Until // prolonged, but its owner was not told
		if m.Owner == 0 || m.Owner != r.Owner || m.Epoch != r.Epoch || !as {
			return false, nil
		}
		m.end()
		return true, nil
	})
}

// end makes a tenure one that is over. The epoch stays, for the next one.
func (m *masterRecord) end() { m.Owner, m.Life, m.Until, m.Turn = 0, 0, 0, m.Turn+1 }

// endOf ends c's tenure, if it has one or may have begun one.
func (b *Board) endOf(c rdma.Client) error {
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
	delete(b.mine, c.ID) // what lands later is over at once, since the identity is given back next
	return err
}

func (b *Board) lease(owner rdma.ClientID, lease time.Duration) error {
	if err := b.knownClient(owner); err != nil {
		return err
	}
	if lease < MinLease || lease > MaxLease {
		return fmt.Errorf("a lease of %v: want %v to %v: %w", lease, MinLease, MaxLease, rdma.ErrAccess)
	}
	return nil
}

// lifeOf returns the present life of an identity; 0: it is free.
func (b *Board) lifeOf(c rdma.ClientID) (uint64, error) {
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
