package kit

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// handClock is a clock that a test sets, and that counts the looks at it.
type handClock struct {
	rdma.Env
	now   time.Duration
	looks int
}

func (c *handClock) Now() time.Duration { c.looks++; return c.now }

// TestBudget: time passes as the clock says, except that no step of the clock takes more than a
// quarter, and none gives time back.
func TestBudget(t *testing.T) {
	c := &handClock{now: time.Hour}
	b := NewBudget(c, 80*time.Millisecond, 0)
	if !b.Over() {
		t.Error("there is time before Begin")
	}
	b.Begin()
	for i, step := range []struct{ by, left time.Duration }{
		{0, 80}, {10, 70}, {-time.Hour / time.Millisecond, 70}, {5, 65}, {time.Hour / time.Millisecond, 45},
		{20, 25}, {20, 5}, {20, 0}, {-20, 0},
	} {
		c.now += step.by * time.Millisecond
		if got := b.Left(); got != step.left*time.Millisecond {
			t.Errorf("step %d: %v are left, want %v ms", i, got, int64(step.left))
		}
	}
	if !b.Over() || !b.Used(8) {
		t.Error("there is time behind the end")
	}
	b.Begin()
	c.now += 9 * time.Millisecond
	if b.Used(8) || !b.Used(9) {
		t.Error("9 ms of 80 are more than an eighth, or no more than a ninth")
	}
}

// TestBudgetTrusts: the clock is asked again behind a batch that was not complete at once, and
// behind a few that were.
func TestBudgetTrusts(t *testing.T) {
	c := &handClock{}
	const trusted = 6
	b := NewBudget(c, time.Second, trusted)
	b.Begin()
	var q rdma.Base
	q.Init(nil)
	done, flying := q.Batch(), q.Batch()
	flying.Read(rdma.At(0, 0), 8)
	q.Posted(flying)
	if !done.Finished() || flying.Finished() {
		t.Fatal("this test shows nothing")
	}
	c.looks = 0
	for range 10 * (trusted + 1) {
		b.Next()
		b.Posted(done)
	}
	if want := 10; c.looks < want-1 || c.looks > want+1 {
		t.Errorf("%d looks at the clock, want %d", c.looks, want)
	}
	c.looks = 0
	for range 10 {
		b.Next()
		b.Posted(flying)
	}
	if c.looks < 9 {
		t.Errorf("%d looks for 10 batches", c.looks)
	}
}
