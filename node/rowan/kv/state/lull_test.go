package state

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
)

// clock is an endpoint that has the time.
type clock struct {
	rdma.Endpoint
	now time.Duration
}

func (c *clock) Now() time.Duration { return c.now }

// TestLull: a task that has nothing to do looks ever more seldom, at the same times as others,
// until there is something.
func TestLull(t *testing.T) {
	const least, most = 50 * time.Microsecond, 20 * time.Millisecond
	ep := &clock{now: 1234567}
	s := &Server{Opt: kv.Options{IdleEvery: most}}
	l := s.NewLull(ep, least)
	looks := func(within time.Duration) (n int) {
		for until := ep.now + within; ep.now < until; n++ {
			ep.now += l.Next(false)
		}
		return n
	}
	if n := looks(time.Second); n < 50 || n > 70 || ep.now%most != 0 {
		t.Errorf("%d looks in the first second, the last at %v: want one each %v, and some at first", n, ep.now, most)
	}
	for what, do := range map[string]func() (busy bool){
		"there is something to do": func() bool { return true },
		"cleaners ask":             func() bool { s.Quiet.Ask(); return false },
		"a term begins":            func() bool { s.Known.Adopt(&Term{}); return false },
	} {
		if pause := l.Next(do()); pause != least {
			t.Errorf("the next look is in %v when %s: want %v", pause, what, least)
		}
		if pause := l.Next(false); pause != least {
			t.Errorf("the second look is in %v when %s: want %v", pause, what, least)
		}
		looks(2 * time.Second)
		if pause := l.Next(false); pause != most {
			t.Errorf("the next look is in %v behind two seconds: want %v", pause, most)
		}
		ep.now += most
	}
	s.Opt.IdleEvery = 0
	l = s.NewLull(ep, least)
	for range 3 {
		if pause := l.Next(false); pause != least {
			t.Errorf("the next look is in %v where none is seldom: want %v", pause, least)
		}
	}
}
