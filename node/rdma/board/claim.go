package board

import (
	"errors"
	"fmt"
	"strings"

	"github.com/farkv/farkv/node/rdma"
)

// maxName bounds a client's name in its record, in bytes.
const maxName = 64

// unresolvedClaim is a claim whose outcome is unknown.
type unresolvedClaim struct {
	id      rdma.ClientID
	version uint64 // that it replaces
	life    uint64 // that it began
}

// Claim returns a free identity, with the next of its lives, for a worker of this process. The
// error wraps rdma.ErrFull when there is none. After one that wraps ErrUnreachable the next Claim,
// or Settle, gives back what may have been claimed.
func (b *Board) Claim(name string) (rdma.Client, error) {
	_ = b.Settle() // what cannot be settled now is not handed out
	me := clientRecord{Name: shortened(name), PID: b.o.PID, Process: b.o.Process, Machine: b.o.Machine, InUse: true}
	for range patience { // each time others were faster with every identity that was free
		_, all, err := b.look()
		if err != nil {
			return rdma.Client{}, fmt.Errorf("claim an identity as %q: list the identities of clients: %w", name, err)
		}
		tried := 0
		for id := b.reserve(all); id != 0; id = b.reserve(all) {
			tried++
			old := &all[id-1]
			me.Life = old.Life + 1
			ok, err := b.take(id, old.version, me)
			if err != nil {
				return rdma.Client{}, fmt.Errorf("claim identity %d as %q: %w", id, name, err)
			}
			if ok {
				return holder(id, me).Client, nil
			}
			old.InUse = true // another claim was faster
		}
		if tried == 0 {
			return rdma.Client{}, fmt.Errorf("claim an identity as %q: %w", name, full(all))
		}
	}
	return rdma.Client{}, fmt.Errorf("claim an identity as %q: others were faster %d times: %w",
		name, patience, rdma.ErrFull)
}

// full says why there is no identity.
func full(all []listed) error {
	attached, fenced := 0, 0
	for _, r := range all {
		switch {
		case r.Fenced:
			fenced++
		case r.InUse:
			attached++
		}
	}
	return fmt.Errorf("%d of %d clients are attached, or died and were not noticed yet, and %d were fenced off "+
		"and wait for recovery: %w", attached, len(all), fenced, rdma.ErrFull)
}

// reserve picks the next identity that is free and that no other worker of this process is about,
// and keeps others from it; 0: there is none. That a process never claims an identity twice at a
// time lets it know its own claim again.
func (b *Board) reserve(all []listed) rdma.ClientID {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range all {
		id := rdma.ClientID(b.next + 1)
		b.next = (b.next + 1) % len(all)
		if !all[id-1].InUse && !b.busy[id] && b.held[id] == 0 {
			b.busy[id] = true
			return id
		}
	}
	return 0
}

// take begins a life, if no other claim was faster. It ends the reservation unless the outcome is
// not known.
func (b *Board) take(id rdma.ClientID, version uint64, me clientRecord) (bool, error) {
	key := clientKey(id)
	var unknown error
	for range attempts {
		ok, err := b.swap(key, version, &me)
		if err == nil && !ok && unknown != nil { // by an attempt before, perhaps
			var now clientRecord
			if now, _, err = load[clientRecord](b, key); err == nil {
				ok = b.isMine(now, me.Life)
			}
		}
		if err == nil {
			b.settled(id, me.Life, ok)
			return ok, nil
		}
		unknown = err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unresolved = append(b.unresolved, unresolvedClaim{id, version, me.Life})
	return false, unknown
}

func (b *Board) isMine(r clientRecord, life uint64) bool {
	return r.Life == life && r.InUse && r.Process == b.o.Process
}

func (b *Board) settled(id rdma.ClientID, life uint64, mine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.busy, id)
	if mine {
		b.held[id] = life
	}
}

// Settle gives back identities that were claimed without the claimant's knowledge, since the store
// did not answer. Call it before the process goes on without this board; Claim does, too. After an
// error some are left.
func (b *Board) Settle() error {
	b.mu.Lock()
	claims := b.unresolved
	b.unresolved = nil
	b.mu.Unlock()
	var failed []error
	for _, d := range claims {
		if err := b.settle(d); err != nil {
			failed = append(failed, err)
			b.mu.Lock()
			b.unresolved = append(b.unresolved, d)
			b.mu.Unlock()
			continue
		}
		b.settled(d.id, d.life, false)
	}
	return errors.Join(failed...)
}

// settle makes sure that an unresolved claim has no effect: what it would replace is replaced, or
// what it began is ended.
func (b *Board) settle(d unresolvedClaim) error {
	for range attempts {
		r, version, err := load[clientRecord](b, clientKey(d.id))
		if err != nil {
			return fmt.Errorf("settle the claim of identity %d: %w", d.id, err)
		}
		if b.isMine(r, d.life) {
			return b.Release(rdma.Client{ID: d.id, Life: d.life})
		}
		if version != d.version {
			return nil
		}
		ok, err := b.swap(clientKey(d.id), version, &clientRecord{Life: d.life})
		if err != nil {
			return fmt.Errorf("settle the claim of identity %d: %w", d.id, err)
		}
		if ok {
			return nil
		}
	}
	return fmt.Errorf("settle the claim of identity %d: others change it all the time: %w", d.id, ErrUnreachable)
}

// shortened returns the beginning of a name that fits.
func shortened(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "")
}
