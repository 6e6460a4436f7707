package telemetry

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// happened is the k-th event of a keeper.
func happened(keeper, k int, at time.Time) Event {
	return Event{At: at.Truncate(time.Microsecond), What: "recovered", Tenure: uint64(keeper), Epoch: uint64(k),
		Node: k%5 - 1, Client: k,
		Took: time.Duration(k), Text: strings.Repeat(fmt.Sprintf("keeper %d tells %d; ", keeper, k), 1+k%10)}
}

func isHappened(e *Event) bool {
	return *e == happened(int(e.Tenure), int(e.Epoch), e.At)
}

// TestEventsTorn ends a keeper while it appends, at any verb, beside others and a reader: what is
// read was appended as a whole, each event once, and those that were acknowledged are there.
func TestEventsTorn(t *testing.T) {
	forSeeds(t, 100, func(t *testing.T, seed uint64) {
		const keepers, each = 3, 15
		p := newPool(t, sim.Hostile(seed), 1+int(seed%3), 1)
		acked := map[[2]int]bool{}
		for i := range keepers {
			w := p.Go(fmt.Sprint("keeper ", i), func(ep rdma.Endpoint) {
				for k := 0; k < each; {
					v, err := ep.Join()
					if err != nil {
						return
					}
					var some []Event
					for range min(1+ep.Rand().IntN(3), each-k) {
						some = append(some, happened(i, k+len(some), wall(ep)))
					}
					if err := p.r.Append(ep, &v, some, time.Second); err != nil && !errors.Is(err, ErrNowhere) {
						t.Error(err)
					} else if err == nil {
						for n := range some {
							acked[[2]int{i, k + n}] = true
						}
					}
					k += len(some)
				}
			})
			if i == 0 {
				p.CrashAt(w, 1+seed%40)
			}
		}
		seen := map[[2]int]bool{}
		d := NewReader(p.r)
		look := func(ep rdma.Endpoint) {
			was := map[[2]int]bool{}
			for id := range acked {
				was[id] = true
			}
			all, err := d.Events(ep)
			if err != nil {
				t.Error(err)
			}
			for i := range all {
				id := [2]int{int(all[i].Tenure), int(all[i].Epoch)}
				if !isHappened(&all[i]) || seen[id] {
					t.Errorf("this never happened, or is told again: %+v", all[i])
				}
				seen[id] = true
			}
			for id := range was {
				if !seen[id] {
					t.Errorf("event %d of keeper %d was acknowledged, and is not there", id[1], id[0])
				}
			}
		}
		p.Go("reader", func(ep rdma.Endpoint) {
			for range 30 {
				look(ep)
				ep.Sleep(time.Duration(ep.Rand().Int64N(int64(3 * time.Microsecond))))
			}
		})
		p.run()
		p.Go("reader behind", look)
		p.run()
	})
}

// TestRingWraps appends more events than are kept: the last ones are there, in their order, whether
// a reader looked meanwhile or not; also once one of two nodes is dead.
func TestRingWraps(t *testing.T) {
	p := newPool(t, sim.Options{Seed: 1}, 2, 1)
	ep := p.open()
	often, late := NewReader(p.r), NewReader(p.r)
	var read []Event
	const all = 3*slots + 17
	for k := 0; k < all; k += 8 {
		v := p.View()
		var some []Event
		for i := range 8 {
			some = append(some, happened(1, k+i, time.Unix(wallAtStart+int64(k+i), 0).UTC()))
		}
		if err := p.r.Append(ep, &v, some, time.Second); err != nil {
			t.Fatal(err)
		}
		if k%64 == 0 {
			more, err := often.Events(ep)
			if err != nil {
				t.Fatal(err)
			}
			read = append(read, more...)
		}
	}
	if err := p.KillNode(0); err != nil {
		t.Fatal(err)
	}
	more, err := often.Events(ep)
	read = append(read, more...)
	last, wrong := late.Events(ep)
	if err = errors.Join(err, wrong); err != nil {
		t.Fatal(err)
	}
	for i := range read {
		if int(read[i].Epoch) != i {
			t.Fatalf("a reader that looked often finds %d as event %d", read[i].Epoch, i)
		}
	}
	if n := len(read); len(last) != slots || !slices.Equal(last, read[n-slots:]) {
		t.Errorf("one that looks late finds %d, want the last %d of %d", len(last), slots, n)
	}
	if again, err := late.Events(ep); len(again) > 0 || err != nil {
		t.Errorf("another look finds %d (%v)", len(again), err)
	}
}

// TestAppendAgain appends the same events twice, as keepers do that do not know whether it worked:
// they are read once.
func TestAppendAgain(t *testing.T) {
	p := newPool(t, sim.Options{Seed: 1}, 2, 1)
	ep, v := p.open(), p.View()
	e := []Event{happened(1, 1, wall(p.open()))}
	if err := errors.Join(p.r.Append(ep, &v, e, time.Second), p.r.Append(ep, &v, e, time.Second)); err != nil {
		t.Fatal(err)
	}
	if all, err := NewReader(p.r).Events(ep); err != nil || !slices.Equal(all, e) {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestNoNodes: with all nodes gone errors say so.
func TestNoNodes(t *testing.T) {
	p := newPool(t, sim.Options{Seed: 1}, 2, 1)
	ep, v := p.open(), p.View()
	if err := errors.Join(p.KillNode(0), p.KillNode(1)); err != nil {
		t.Fatal(err)
	}
	d, w := NewReader(p.r), NewWriter(p.r, 1)
	_, lookErr := d.Events(ep)
	_, _, processes := d.Processes(ep, wall(ep))
	if !errors.Is(lookErr, rdma.ErrNodeDown) || !errors.Is(processes, rdma.ErrNodeDown) {
		t.Errorf("looks: %v, %v", lookErr, processes)
	}
	appended := p.r.Append(ep, &v, []Event{{}}, time.Second)
	if err := w.Publish(ep, told(1, 1, wall(ep))); !errors.Is(err, ErrNowhere) || !errors.Is(appended, ErrNowhere) {
		t.Errorf("publish: %v, append: %v", err, appended)
	}
}
