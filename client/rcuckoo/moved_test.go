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

// TestMoved reads keys again and again while an INSERT moves them to their other rows: nobody misses one.
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

// TestIdentityAgain has clients with the same identity follow each other: nobody's sequences begin anew, as what is left of
// the one before bears them.
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
			t.Errorf("client %d of round %d begins at %d, and the one before ended at %d", s.id, i, s.shards[0].seq, before)
		}
		must(t, s.Insert(fmt.Appendf(nil, "key %d", i), nil))
		last[s.id] = s.shards[0].seq
		must(t, errors.Join(s.Close(), ep.Close()))
	}
	if len(last) > 2 {
		t.Errorf("%d identities in a pool of two", len(last))
	}
}

// TestMarkedAgain lets a client crash behind each verb of an UPDATE. When that took effect, the extent of the former value is
// free; when not, that of the new one; and so are those that it had in hand.
func TestMarkedAgain(t *testing.T) {
	p := extentPool(1)
	p.Rows, p.Slabs, p.Clients, p.Timeout = 8, 8, 8, time.Second
	l, err := newLayout(p, 1)
	must(t, err)
	key, before, after := []byte("key"), make([]byte, 100), []byte("a value that is too long for its entry")
	took := 0
	for k := uint64(0); ; k++ {
		o := sim.Hostile(k + 1)
		o.Memory, o.Clients, o.Handler = l.bytes, p.Clients, node.Serve
		d := sim.New(o)
		must(t, Make(d, p))
		worker := func(name string, f func(s *Store, w *sim.Worker)) *sim.Worker {
			var w *sim.Worker
			w = d.Go(name, func(ep rdma.Endpoint) {
				s, err := Open(ep, Options{Pool: d, Failure: impatient})
				if err != nil {
					t.Error(err)
					return
				}
				f(s, w)
				if err := s.Close(); err != nil && !errors.Is(err, rdma.ErrClosed) { // which ends who crashed, at last
					t.Error(err)
				}
			})
			return w
		}
		worker("loader", func(s *Store, _ *sim.Worker) {
			if err := s.Insert(key, before); err != nil {
				t.Error(err)
			}
		})
		must(t, d.Run())
		victim := worker("victim", func(s *Store, w *sim.Worker) {
			d.CrashAt(w, w.Sent()+k)
			if err := s.Update(key, after); err != nil && !errors.Is(err, rdma.ErrClosed) {
				t.Error(err)
			}
		})
		must(t, d.Run())
		var value []byte
		worker("repairer", func(s *Store, _ *sim.Worker) {
			if err := s.Insert(key, nil); !errors.Is(err, client.ErrExists) { // under the key's locks
				t.Error(err)
			}
			v, err := s.Get(key)
			if err != nil {
				t.Error(err)
			}
			value = append(value, v...)
			if _, err := s.extents.leave(0, victim.Client()); err != nil {
				t.Error(err)
			}
		})
		must(t, d.Run())
		r, err := Check(d)
		must(t, err)
		if len(r.Damage) > 0 {
			t.Fatalf("crash behind verb %d: %q", k, r.Damage)
		}
		if string(value) == string(after) {
			took++
		}
		if held := r.Facts[len(r.Facts)-1].Count; held > 0 {
			t.Errorf("crash behind verb %d: %d extents are nobody's", k, held)
		}
		must(t, d.Close())
		if !victim.Crashed() {
			break
		}
	}
	if took < 3 {
		t.Errorf("%d of the updates took effect", took)
	}
}
