package rcuckoo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// TestMoved reads keys again and again while an INSERT moves them to their other rows: no reader
// misses one.
func TestMoved(t *testing.T) {
	for _, seed := range dramas(t, 30) {
		d := newDrama(t, seed, 0.95, 1+int(seed%5))
		moved := false
		d.enter("mover", func(w int, r *check.Recorder, ep rdma.Endpoint) {
			ep.Sleep(10 * time.Microsecond)
			if err := r.Insert(d.keys[0], check.MakeValue(nil, w, 1, 16)); err != nil {
				d.errs = append(d.errs, err)
			}
			moved = true
		})
		for i := range 4 {
			d.enter(fmt.Sprint("reader ", i), func(w int, r *check.Recorder, ep rdma.Endpoint) {
				for n := i; !moved; n++ {
					key := d.keys[1+n%(len(d.keys)-1)]
					if _, err := r.Get(key); err != nil {
						d.errs = append(d.errs, fmt.Errorf("get %q: %w", key, err))
					}
				}
			})
		}
		if err := d.end(); err != nil {
			t.Fatalf("seed %d, keys %q: %v", seed, d.keys, err)
		}
	}
}

// TestIdentityAgain has clients with the same identity follow each other. Each goes on above the
// sequences of the one before, as that client's records have them.
func TestIdentityAgain(t *testing.T) {
	p := inlinePool(1)
	p.Clients = 2
	f := memPool(t, 1, p)
	last := map[rdma.ClientID]uint64{}
	for i := range 8 {
		ep, err := f.Open("again")
		must(t, err)
		s, err := Open(ep, Options{Pool: f})
		must(t, err)
		if before := last[s.id]; s.shards[0].seq < before {
			t.Errorf("client %d of round %d begins at %d, and the one before ended at %d", s.id, i, s.shards[0].seq,
				before)
		}
		must(t, s.Insert(fmt.Appendf(nil, "key %d", i), nil))
		last[s.id] = s.shards[0].seq
		must(t, errors.Join(s.Close(), ep.Close()))
	}
	if len(last) > 2 {
		t.Errorf("%d identities in a pool of two", len(last))
	}
}

// replacement is a pool in which a client replaces a value by another, both in extents.
type replacement struct {
	*sim.Sim
	t *testing.T
}

var replacedKey, replacedValue = []byte("key"), []byte("a value that is too long for its entry")

func newReplacement(t *testing.T, seed uint64) *replacement {
	p := extentPool(1)
	p.Rows, p.Slabs, p.Clients, p.Timeout = 8, 8, 8, time.Second
	l, err := newLayout(p, 1)
	must(t, err)
	o := sim.Hostile(seed)
	o.Memory, o.Clients, o.Handler = l.bytes, p.Clients, node.Serve
	d := &replacement{sim.New(o), t}
	must(t, Make(d, p))
	return d
}

// play has a worker do something, and returns when all workers have ended.
func (d *replacement) play(name string, f func(s *Store, w *sim.Worker) error) (w *sim.Worker) {
	w = d.Go(name, func(ep rdma.Endpoint) {
		s, err := Open(ep, Options{Pool: d, Failure: impatient})
		if err == nil {
			err = errors.Join(f(s, w), s.Close())
		}
		if err != nil && !errors.Is(err, rdma.ErrClosed) { // ErrClosed is how a crashed worker ends at last
			d.t.Errorf("%s: %v", name, err)
		}
	})
	must(d.t, d.Run())
	return w
}

// repair locks the key's rows once more, frees what the victim had in hand, and returns the value.
func (d *replacement) repair(victim *sim.Worker) (value string) {
	d.play("repairer", func(s *Store, _ *sim.Worker) error {
		if err := s.Insert(replacedKey, nil); !errors.Is(err, client.ErrExists) {
			return fmt.Errorf("insert what is there: %w", err)
		}
		v, err := s.Get(replacedKey)
		value = string(v)
		_, left := s.extents.leave(0, victim.Client())
		return errors.Join(err, left)
	})
	return value
}

// TestMarkedAgain lets a client crash after each verb of an UPDATE. If the UPDATE took effect,
// the extent of the old value is free, else that of the new value. So are the extents that the
// client had in hand.
func TestMarkedAgain(t *testing.T) {
	took := 0
	for k, crashed := uint64(0), true; crashed; k++ {
		d := newReplacement(t, k+1)
		d.play("loader", func(s *Store, _ *sim.Worker) error { return s.Insert(replacedKey, make([]byte, 100)) })
		victim := d.play("victim", func(s *Store, w *sim.Worker) error {
			d.CrashAt(w, w.Sent()+k)
			return s.Update(replacedKey, replacedValue)
		})
		if d.repair(victim) == string(replacedValue) {
			took++
		}
		r, err := Check(d)
		must(t, err)
		if len(r.Damage) > 0 {
			t.Fatalf("crash behind verb %d: %q", k, r.Damage)
		}
		if held := r.Facts[len(r.Facts)-1].Count; held > 0 {
			t.Errorf("crash behind verb %d: %d extents have no owner", k, held)
		}
		crashed = victim.Crashed()
		must(t, d.Close())
	}
	if took < 3 {
		t.Errorf("%d of the updates took effect", took)
	}
}
