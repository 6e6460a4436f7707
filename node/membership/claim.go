package membership

import (
	"errors"
	"fmt"
	"strings"

	"github.com/farkv/farkv/node/rdma"
)

// maxName bounds a client's name in its record, in bytes. It keeps the record below what LimitsFor
// counts for one.
const maxName = 64

// unresolvedClaim is a claim of which the outcome is unknown: its Swap may have happened, may still
// happen, or may never happen.
type unresolvedClaim struct {
	id rdma.ClientID
	// version is that of the record which the claim replaces. While the record has it, the Swap may
	// still happen.
	version uint64
	// life is the one that the claim begins.
	life uint64
}

// Claim returns a free identity, with the next of its lives, for a worker of this process. The name
// is cut to maxName bytes in the record.
//
// Each claim is one Swap of one record, which begins the life and names the process. So of two
// processes that claim the same identity one succeeds, and a process that crashes behind the Swap
// leaves an identity of a process that is not attached: Forget frees it.
//
// The error wraps rdma.ErrFull when no identity is free, or when other processes were faster
// maxRestarts times. After an error that wraps ErrUnreachable an identity may have been claimed;
// the next Claim, or Settle, gives it back.
func (b *Registry) Claim(name string) (rdma.Client, error) {
	// An identity that cannot be settled now stays busy, and so is not handed out. No error of
	// Settle keeps this claim from another identity.
	_ = b.Settle()
	me := clientRecord{Name: shortened(name), PID: b.o.PID, Process: b.o.Process, Machine: b.o.Machine, InUse: true}
	// Each turn but the last one tried every identity that was listed as free, and other processes
	// were faster with all of them.
	for range maxRestarts {
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
		name, maxRestarts, rdma.ErrFull)
}

// full returns the error that says why no identity is free. It wraps rdma.ErrFull.
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

// reserve picks the next identity that is free and that no other Claim of this Registry is about,
// and marks it busy. It returns 0 if there is none.
//
// A Registry never has two claims of one identity under way. isMine relies on that: a record with
// the claimed life and this Registry's name can only come from this claim.
func (b *Registry) reserve(all []listed) rdma.ClientID {
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

// take begins a life by replacing version of the identity's record by me. It reports false if
// another claim was faster.
//
// A Swap of unknown outcome is repeated, which does no harm: at most one of them finds the version.
// When a repeated Swap finds another version, the first may have made it; then the record says
// which claim did. take ends the reservation unless the outcome stays unknown. Then the identity
// stays busy, and Settle gives it back.
func (b *Registry) take(id rdma.ClientID, version uint64, me clientRecord) (bool, error) {
	key := clientKey(id)
	var unknown error
	for range attempts {
		ok, err := b.swap(key, version, &me)
		if err == nil && !ok && unknown != nil { // an attempt before this one may have replaced it
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

// isMine reports whether r is what a claim of this Registry wrote that began life.
func (b *Registry) isMine(r clientRecord, life uint64) bool {
	return r.Life == life && r.InUse && r.Process == b.o.Process
}

// settled ends the reservation of an identity. With mine the claim succeeded, and life is handed
// out.
func (b *Registry) settled(id rdma.ClientID, life uint64, mine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.busy, id)
	if mine {
		b.held[id] = life
	}
}

// Settle gives back the identities of unresolved claims. Call it before the process goes on without
// this Registry; Claim calls it, too. After an error some claims are left, and Settle can be called
// again. A process that ends without it leaves identities of a process that is not attached.
func (b *Registry) Settle() error {
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

// settle makes sure that an unresolved claim has no effect. There are three cases. The claim
// happened: the life that it began is released. Another version is there: the claim's Swap never
// happens any more, since versions only grow. The version that the claim would replace is there:
// settle replaces it, by a free record of the same life, so that the claim's Swap finds another
// version. That life was never handed out, and the next claim begins the one behind it.
func (b *Registry) settle(d unresolvedClaim) error {
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

// shortened returns the first maxName bytes of a name, without a character that is cut in two: the
// record is JSON, which has to be valid UTF-8.
func shortened(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "")
}
