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
// timeout goes on as soon as they are back, whether its calls fail soon or have no answer: it does
// not take a region that does not answer for a full one.
func TestDrawOutOfReach(t *testing.T) {
	for _, fails := range []time.Duration{50 * time.Microsecond, time.Hour} {
		drawOutOfReach(t, fails)
	}
}

func drawOutOfReach(t *testing.T, fails time.Duration) {
	p := small(3, 3, false)
	l, err := newPlan(p, 3)
	must(t, err)
	const from, away = 10 * time.Millisecond, 100 * time.Millisecond
	s := sim.New(sim.Options{Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve,
		RetryTimeout: fails,
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
			t.Errorf("calls fail after %v: operation failed: %v", fails, err)
		}
		if late := ep.Now() - from - away; late < 0 || late > 2*p.Timeout/lastReach {
			t.Errorf("the INSERT ended %v after the nodes were back", late)
		}
	})
	must(t, s.Run())
}

// TestBuffersOutOfReach: an UPDATE that needs buffers goes on when the nodes answer again that did
// not for half of its timeout: all of them, or so many that the others are no majority. What was
// sent meanwhile arrives late.
func TestBuffersOutOfReach(t *testing.T) {
	for _, silent := range [][]int{{0, 1}, {0, 2}, {1, 2}, {0, 1, 2}} {
		p := small(3, 3, false)
		p.Values = Buffers{Segments: 64, Each: 500} // so that the UPDATE's segment is another one
		l, err := newPlan(p, 3)
		must(t, err)
		const from = 10 * time.Millisecond
		away := p.Timeout / 2
		o := sim.Options{Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve, RetryTimeout: time.Hour}
		for _, n := range silent {
			o.Faults = append(o.Faults, sim.Fault{Kind: sim.PartitionFault, Client: "client", Node: n, At: from,
				For: away})
		}
		s := sim.New(o)
		must(t, Make(s, p))
		s.Go("other", func(ep rdma.Endpoint) {
			k, err := OpenStore(ep, StoreOptions{})
			must(t, err)
			must(t, k.Insert([]byte("one"), []byte("value")))
			must(t, k.Close())
		})
		s.Go("client", func(ep rdma.Endpoint) {
			ep.Sleep(from / 2)
			k, err := OpenStore(ep, StoreOptions{})
			must(t, err)
			_, err = k.Get([]byte("one"))
			must(t, err)
			ep.Sleep(from - time.Millisecond/5 - ep.Now())
			must(t, k.Insert([]byte("two"), []byte("value"))) // it knows how slow the nodes are
			ep.Sleep(from - ep.Now())
			if err := k.Update([]byte("one"), []byte("other")); err != nil {
				t.Errorf("nodes %v are silent: behind %v: %v", silent, s.Now()-from, err)
			}
		})
		must(t, s.Run())
		s.Close()
	}
}
