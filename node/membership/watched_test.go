package membership_test

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
)

// TestWatchedMaster: a candidate that watches the master's record asks nothing while its tenure may
// last, and is not slower for it. It takes over when the record was there unchanged for as long as
// one that asks has to see it, from when the watch saw it.
func TestWatchedMaster(t *testing.T) {
	p := newPool(t)
	p.now = time.Hour
	a := p.process(4)
	seen := p.now
	b := membership.New(p, membership.Options{
		Nodes: 3, Clients: 4, Process: "b", Now: func() time.Duration { return p.now },
		Revoke: func(rdma.Client) error { return nil },
		Glance: func() (membership.Record, time.Duration, bool) {
			text, version, err := p.Store.Load("master")
			return membership.Record{Key: "master", Value: text, Version: version}, seen, err == nil
		},
	})
	one, two := must[rdma.Client](t)(a.Claim("one")), must[rdma.Client](t)(b.Claim("two"))
	become(t, a, one)
	p.load = errors.New("the store was asked")
	refused(t, b, two, one.ID)
	p.now = seen + membership.ExpelWait(lease) - 1
	refused(t, b, two, one.ID)
	p.load = nil
	p.now = seen + membership.ExpelWait(lease)
	become(t, b, two)
}
