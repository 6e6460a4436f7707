package rcuckoo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// replacement is a pool in which a client replaces a value by another, both in extents.
type replacement struct {
	*sim.Sim
	t *testing.T
}

var replacedKey, replacedValue = []byte("key"), []byte("a value that is too long for its entry")

func newReplacement(t *testing.T, seed uint64) *replacement {
	p := extentPool(1)
	p.Rows, p.Slabs, p.Clients, p.Timeout = 8, 8, 8, time.Second
	l, err := table.New(p, 1)
	must(t, err)
	o := sim.Hostile(seed)
	o.Memory, o.Clients, o.Handler = l.Bytes, p.Clients, node.Serve
	d := &replacement{sim.New(o), t}
	must(t, Make(d, p))
	return d
}

// play has a worker do something, and returns when all workers have ended.
func (d *replacement) play(name string, f func(s *Store, w *sim.Worker) error) (w *sim.Worker) {
	w = d.Go(name, func(ep rdma.Endpoint) {
		s, err := Open(ep, session.Options{Pool: d, Failure: impatient})
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

// repair locks the key's rows once more, frees what the victim had claimed, and returns the value.
func (d *replacement) repair(victim *sim.Worker) (value string) {
	d.play("repairer", func(s *Store, _ *sim.Worker) error {
		if err := s.Insert(replacedKey, nil); !errors.Is(err, client.ErrExists) {
			return fmt.Errorf("insert what is there: %w", err)
		}
		v, err := s.Get(replacedKey)
		value = string(v)
		_, left := s.extents.Leave(0, victim.Client())
		return errors.Join(err, left)
	})
	return value
}

// TestMarkedAgain lets a client crash after each verb of an UPDATE. If the UPDATE took effect,
// the extent of the old value is free, else that of the new value. So are the extents that the
// client had claimed.
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
