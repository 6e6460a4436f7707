package explore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// toy is a small store that leaves work for recovery: a writer locks the key that it changes. Each
// key has one word that points at a block, and a block is written once. With a flaw the store is
// wrong.
type toy struct {
	ep   rdma.Endpoint
	flaw string
}

const (
	toyBump    = 8 // the word that memory is taken from
	toyLocks   = 4096
	toySlots   = 8192
	toyBlocks  = 64 << 10
	toyBytes   = 8 << 20
	toyKeys    = maxKeys
	noteLeak   = 62 // locks of keys that no plan has, for flaws
	noteWaits  = 63
	toyTimeout = 20 * time.Millisecond
)

func (s *toy) do(add func(b *rdma.Batch) *rdma.Op) (rdma.Op, error) {
	b := s.ep.Batch()
	defer b.Release()
	op := add(b)
	if err := rdma.Do(s.ep, b, toyTimeout); err != nil {
		return rdma.Op{}, fmt.Errorf("%w: %w", client.ErrUncertain, err)
	}
	out := *op
	out.Buf = bytes.Clone(op.Buf)
	return out, nil
}

func (s *toy) cas(a rdma.Addr, old, new uint64) (bool, error) {
	op, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.CompareSwap(a, old, new) })
	return err == nil && op.Swapped(), err
}

func (s *toy) read(a rdma.Addr, n int) ([]byte, error) {
	op, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.Read(a, n) })
	return op.Buf, err
}

func lockOf(id uint64) rdma.Addr { return rdma.At(0, toyLocks+8*id) }

func slotOf(key []byte) (at rdma.Addr, id uint64) {
	fmt.Sscanf(string(key), "key-%d", &id)
	return rdma.At(0, toySlots+8*id), id
}

// lookUp returns a key's slot and its value, nil when it has none.
func (s *toy) lookUp(key []byte) (word uint64, value []byte, err error) {
	at, _ := slotOf(key)
	p, err := s.read(at, 8)
	if err != nil {
		return 0, nil, err
	}
	if word = binary.LittleEndian.Uint64(p); word == 0 {
		return word, nil, nil
	}
	value, err = s.read(rdma.At(0, word&(1<<48-1)), int(word>>48))
	return word, value, err
}

// lock waits until the key is the client's.
func (s *toy) lock(id uint64) error {
	for began := s.ep.Now(); s.ep.Now()-began < toyTimeout || s.flaw == "endless"; {
		if ok, err := s.cas(lockOf(id), 0, uint64(s.ep.Client())); ok || err != nil {
			return err
		}
		pause := time.Duration(1 + s.ep.Rand().IntN(5000))
		if s.ep.Now()-began > toyTimeout {
			pause *= 1000 // it never ends: a run is over at its time limit, behind few events
		}
		s.ep.Sleep(pause)
	}
	return rdma.ErrTimeout
}

// note leaves something for Check.
func (s *toy) note(i uint64) error {
	_, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, toyLocks+8*i), 1) })
	return err
}

func (s *toy) unlock(id uint64) error {
	a := lockOf(id)
	if s.flaw == "mixed" {
		_, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.Write(a, make([]byte, 8)) })
		return err
	}
	_, err := s.cas(a, uint64(s.ep.Client()), 0)
	return err
}

func (s *toy) change(key, value []byte, want bool, no error) error {
	_, id := slotOf(key)
	if s.flaw == "late" && s.ep.Rand().IntN(20) == 0 {
		s.ep.Sleep(2 * toyTimeout)
	}
	if s.flaw != "lost" {
		if err := s.lock(id); err != nil {
			return err
		}
	}
	word, old, err := s.lookUp(key)
	switch {
	case err != nil:
	case (old != nil) != want:
		if s.flaw == "panic" && want {
			panic("a key that is not there")
		}
		err = no
		if s.flaw == "leak" {
			err = errors.Join(no, s.note(noteLeak))
		}
	default:
		err = s.publish(key, word, value)
	}
	if s.flaw == "lost" {
		return err
	}
	return errors.Join(err, s.unlock(id))
}

func (s *toy) publish(key []byte, word uint64, value []byte) error {
	next := uint64(0)
	if value != nil {
		op, err := s.do(func(b *rdma.Batch) *rdma.Op {
			return b.FetchAdd(rdma.At(0, toyBump), uint64(len(value)+7)&^7)
		})
		if err != nil {
			return err
		}
		next = toyBlocks + op.Result | uint64(len(value))<<48
		if _, err := s.do(func(b *rdma.Batch) *rdma.Op {
			p := b.Alloc(len(value))
			copy(p, value)
			return b.Write(rdma.At(0, toyBlocks+op.Result), p)
		}); err != nil {
			return err
		}
	}
	at, _ := slotOf(key)
	_, err := s.cas(at, word, next) // flaw "lost" has no lock, and does not look
	return err
}

func (s *toy) Get(key []byte) ([]byte, error) {
	_, value, err := s.lookUp(key)
	if err == nil && value == nil {
		err = client.ErrNotFound
	}
	if s.flaw == "failed" && err != nil {
		err = rdma.ErrStale
	}
	return value, err
}

func (s *toy) Insert(key, value []byte) error { return s.change(key, value, false, client.ErrExists) }
func (s *toy) Update(key, value []byte) error { return s.change(key, value, true, client.ErrNotFound) }
func (s *toy) Delete(key []byte) error        { return s.change(key, nil, true, client.ErrNotFound) }
func (s *toy) Close() error                   { return nil }

func toyCheck(f rdma.Fabric) (r client.Report, err error) {
	ep, err := f.Open("check")
	if err != nil {
		return r, err
	}
	defer ep.Close()
	all, err := (&toy{ep: ep}).read(rdma.At(0, toyLocks), 8*toyKeys)
	if err != nil {
		return r, err
	}
	dead := map[uint64]bool{}
	for _, c := range f.Clients() {
		dead[uint64(c.ID)] = !c.Alive
	}
	for id := range toyKeys {
		switch owner := binary.LittleEndian.Uint64(all[8*id:]); {
		case owner == 0:
		case dead[owner] || id == noteWaits:
			r.Waits("key %d is locked", id)
		default:
			r.Damaged("key %d is locked, and its owner is none", id)
		}
	}
	return r, nil
}

// toyRecoverer gives back what dead clients had locked.
type toyRecoverer struct{ toy }

func (m *toyRecoverer) Spares() []int {
	if m.flaw == "spare 2" || m.flaw == "slow" { // no flaws: a pool in which node 2 is a spare
		return []int{2}
	}
	return nil
}
func (m *toyRecoverer) Mend(rdma.View) error  { return nil }
func (m *toyRecoverer) Sweep(rdma.View) error { return nil }

// Restore takes slowRestore timeouts, if it is slow, and a verb each.
func (m *toyRecoverer) Restore(rdma.View, int, int) (err error) {
	for i := 0; m.flaw == "slow" && i < slowRestore && err == nil; i++ {
		_, err = m.read(rdma.At(0, toyBump), 8)
		m.ep.Sleep(toyTimeout)
	}
	return err
}

const slowRestore = recoveryTimeouts * 3 / 4

func (m *toyRecoverer) Recover(_ rdma.View, c rdma.ClientID) error {
	switch m.flaw {
	case "no recovery", "endless":
		return nil
	case "waits":
		if err := m.note(noteWaits); err != nil {
			return err
		}
	case "unrecovered":
		return errors.New("not today")
	}
	for id := range uint64(noteLeak) {
		if _, err := m.cas(lockOf(id), uint64(c), 0); err != nil {
			return err
		}
	}
	return nil
}

func toySubject(flaw string) *Subject {
	return &Subject{
		Name: "toy", Timeout: toyTimeout, MaxValue: 200,
		Memory: func(Shape) (uint64, error) { return toyBytes, nil },
		Format: func(rdma.Fabric, Shape) error {
			if flaw == "bad plan" {
				return rdma.ErrFull
			}
			return nil
		},
		Open:  func(ep rdma.Endpoint, _ bool) (client.Store, error) { return &toy{ep, flaw}, nil },
		Check: func(f rdma.Fabric) (client.Report, error) { return toyCheck(f) },
		Recoverer: func(rdma.Configs) cluster.NewRecoverer {
			return func(ep rdma.Endpoint) (cluster.Recoverer, error) { return &toyRecoverer{toy{ep, flaw}}, nil }
		},
	}
}
