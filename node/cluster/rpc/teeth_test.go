package rpc_test

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// lame is an endpoint with messages that break a rule which package rpc relies on.
type lame struct {
	rdma.Endpoint
	post  func(e *lame, b *rdma.Batch) error
	await func(m rdma.Mailbox, within time.Duration) error
}

func (e *lame) Post(b *rdma.Batch) error {
	if e.post != nil {
		return e.post(e, b)
	}
	return e.Endpoint.Post(b)
}

func (e *lame) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	m, err := rdma.Listen(e.Endpoint, o)
	return &lameBox{m, e}, err
}

type lameBox struct {
	rdma.Mailbox
	e *lame
}

func (m *lameBox) Await(within time.Duration) error {
	err := m.Mailbox.Await(within)
	if m.e.await != nil {
		return m.e.await(m.Mailbox, within)
	}
	return err
}

// TestOnceHasTeeth breaks what makes requests run once, and expects TestOnceOrUncertain to see it.
func TestOnceHasTeeth(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	sent := 0
	for _, r := range []struct {
		broken string
		lame   lame
	}{
		{"what was delivered is not sent again", lame{post: func(e *lame, b *rdma.Batch) error {
			sent++
			err := e.Endpoint.Post(b)
			if sent%7 == 0 && err == nil { // it says that the mailbox was full
				e.Wait(b, rdma.All, time.Second)
				b.Op(0).Err = rdma.ErrBoxFull
			}
			return err
		}}},
		{"what may have been delivered is uncertain", lame{post: func(e *lame, b *rdma.Batch) error {
			err := e.Endpoint.Post(b)
			e.Wait(b, rdma.All, time.Second)
			if errors.Is(b.Op(0).Err, rdma.ErrNodeDown) || sent%3 == 0 {
				b.Op(0).Err = rdma.ErrNoBox
			}
			sent++
			return err
		}}},
		{"a call has a deadline", lame{await: func(m rdma.Mailbox,
			_ time.Duration) error {
			return m.Await(rdma.Forever)
		}}},
	} {
		seen := ""
		for seed := uint64(0); seed < 60 && seen == ""; seed++ {
			seen = once(seed, func(ep rdma.Endpoint) rdma.Endpoint {
				l := r.lame
				l.Endpoint = ep
				return &l
			})
		}
		if seen == "" {
			t.Errorf("rule %q is broken, and nothing shows it", r.broken)
		}
		t.Logf("%s: %.200s", r.broken, seen)
	}
}
