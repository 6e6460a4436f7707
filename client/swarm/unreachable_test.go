package swarm

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// TestOutOfReach: a client is cut off all nodes for half of its timeout, and each of its verbs
// fails soon. None of its operations does, but the one of unknown outcome that was in flight.
// Behind twice the timeout one says why, and does not say before that it gave up.
func TestOutOfReach(t *testing.T) {
	const timeout = 20 * time.Millisecond
	for _, format := range []string{Format, FormatABD, FormatRaw} {
		for _, away := range []time.Duration{timeout / 2, 2 * timeout} {
			failed := 0
			for seed := uint64(1); seed <= seeds.Few(20); seed++ {
				failed += outOfReach(t, format, seed, timeout, away)
			}
			t.Logf("%s, out of reach for %v: %d operations failed", format, away, failed)
			if away > timeout && failed == 0 {
				t.Errorf("%s: a client waits for ever", format)
			}
		}
	}
}

// outOfReach returns how many operations of a client failed.
func outOfReach(t *testing.T, format string, seed uint64, timeout, away time.Duration) (failed int) {
	p := small(3, 3, format == FormatABD)
	if format == FormatRaw {
		p = smallRaw(3)
	}
	p.Timeout = timeout
	l, err := newPlan(p, 3)
	must(t, err)
	from := time.Millisecond + time.Duration(seed)*time.Microsecond
	s := sim.New(sim.Options{Seed: seed, Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve,
		MinLatency: 500, MaxLatency: longestTrip / 2, Tear: true, Reorder: true, RetryTimeout: 50 * time.Microsecond,
		Faults: sim.Faults{{Kind: sim.PartitionFault, Client: "client", Node: sim.AnyNode, At: from, For: away}}})
	defer s.Close()
	must(t, Make(s, p))
	s.Go("client", func(ep rdma.Endpoint) {
		k, err := OpenStore(ep, StoreOptions{Apart: p.Apart, Raw: format == FormatRaw})
		must(t, err)
		key := func(n int) []byte { return fmt.Appendf(nil, "key-%d", n) }
		must(t, k.Insert(key(0), []byte("value")))
		for n := 0; s.Now() < from+away+time.Millisecond; n++ {
			began := s.Now()
			switch (n + int(seed)) % 4 {
			case 0:
				_, err = k.Get(key(0))
			case 1:
				err = k.Update(key(0), []byte("new"))
			case 2:
				err = k.Insert(key(1+n/4), []byte("value"))
			default:
				if err = k.Delete(key(1 + n/4)); errors.Is(err, client.ErrNotFound) {
					err = nil // its INSERT was the one of unknown outcome
				}
			}
			if err == nil {
				continue
			}
			failed++
			uncertain := errors.Is(err, client.ErrUncertain)
			took := s.Now() - began
			if failed > 1+int(away/timeout) || !uncertain && (away < timeout || took < timeout) {
				t.Errorf("%s, seed %d: after %v: %v", format, seed, took, err)
			}
		}
	})
	must(t, s.Run())
	return failed
}

// TestDrawOutOfReach: an INSERT that needs an object while all nodes are away for a part of its
// timeout goes on as soon as they are back: it does not take a region that does not answer for a
// full one.
func TestDrawOutOfReach(t *testing.T) {
	p := small(3, 3, false)
	l, err := newPlan(p, 3)
	must(t, err)
	const from, away = 10 * time.Millisecond, 100 * time.Millisecond
	s := sim.New(sim.Options{Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve,
		RetryTimeout: 50 * time.Microsecond,
		Faults:       sim.Faults{{Kind: sim.PartitionFault, Client: "client", Node: sim.AnyNode, At: from, For: away}}})
	defer s.Close()
	must(t, Make(s, p))
	s.Go("client", func(ep rdma.Endpoint) {
		k, err := OpenStore(ep, StoreOptions{})
		must(t, err)
		must(t, k.Insert([]byte("one"), []byte("value")))
		k.objects.free, k.objects.location = nil, 0
		ep.Sleep(from + time.Millisecond - ep.Now())
		if err := k.Insert([]byte("two"), []byte("value")); err != nil {
			t.Error(err)
		}
		if late := ep.Now() - from - away; late < 0 || late > 2*p.Timeout/lastReach {
			t.Errorf("the INSERT ended %v after the nodes were back", late)
		}
	})
	must(t, s.Run())
}
