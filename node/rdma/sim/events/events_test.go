package events_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma/sim/events"
)

// TestOrder expects events and alarms by time, and at the same time in the order in which they were
// scheduled.
func TestOrder(t *testing.T) {
	type due struct{ at, seq int }
	var q events.Queue[due]
	r := rand.New(rand.NewPCG(1, 2))
	alarms := make([]events.Alarm[due], 50)
	var want []due
	for seq := range 1000 {
		d := due{r.IntN(100), seq}
		if a := &alarms[seq%len(alarms)]; seq%3 == 0 {
			want = slices.DeleteFunc(want, func(o due) bool { return o == a.Event }) // it is moved
			a.Event = d
			q.Arm(a, int64(d.at))
		} else {
			q.At(int64(d.at), d)
		}
		want = append(want, d)
	}
	off := &alarms[3]
	off.Disarm()
	want = slices.DeleteFunc(want, func(o due) bool { return o == off.Event })
	slices.SortStableFunc(want, func(a, b due) int { return a.at - b.at })
	var got []due
	for d := (due{}); q.Next(&d); {
		if q.Now() != int64(d.at) {
			t.Fatalf("%+v happens at %d", d, q.Now())
		}
		got = append(got, d)
	}
	if !slices.Equal(got, want) || q.Steps() != uint64(len(want)) {
		t.Errorf("%d things happened, in another order than the %d that were due", len(got), len(want))
	}
}

// TestLate expects what is scheduled for the past to happen now, and the clock not to go back.
func TestLate(t *testing.T) {
	var q events.Queue[int]
	q.Advance(10)
	q.At(3, 1)
	a := events.Alarm[int]{Event: 2}
	q.Arm(&a, 4)
	var got []int
	for e := 0; q.Next(&e); {
		if got = append(got, e); q.Now() != 10 {
			t.Errorf("event %d happens at %d, and it is 10", e, q.Now())
		}
	}
	if !slices.Equal(got, []int{2, 1}) {
		t.Errorf("events are %v, want the alarm first, which is due earlier", got)
	}
}
