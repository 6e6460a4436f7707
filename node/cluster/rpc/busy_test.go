package rpc_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
)

// TestBusyClient: an answer reaches a client that does not look for a while, though its mailbox is
// full of late answers.
func TestBusyClient(t *testing.T) {
	everywhere(t, func(t *testing.T, r run) {
		var over atomic.Bool
		server := func(ep rdma.Endpoint) {
			p := open(t, ep, rpc.Options{Box: rdma.BoxOptions{Node: 0, Number: 1}})
			defer p.Close()
			var held []*rpc.Request
			for !over.Load() {
				q, err := p.Next(100 * time.Microsecond)
				if err != nil && !errors.Is(err, rdma.ErrTimeout) {
					t.Error(err)
					return
				}
				if q == nil {
					continue
				}
				if held = append(held, q); q.Proc > 1 {
					for _, q := range held {
						q.Answer(q.Proc, nil)
					}
					held = nil
				}
			}
		}
		client := func(ep rdma.Endpoint) {
			defer over.Store(true)
			p := open(t, ep, rpc.Options{Box: rdma.BoxOptions{Node: rdma.All, Slots: 2}})
			defer p.Close()
			// Behind it there is a mailbox to send to: what is asked briefly arrives.
			c, err := p.Call(serverBox, 2, patience, nil)
			for until := ep.Now() + patience; errors.Is(err, rdma.ErrNoBox) && ep.Now() < until; {
				ep.Sleep(20 * time.Microsecond)
				c, err = p.Call(serverBox, 2, patience, nil)
			}
			if err != nil {
				t.Error(err)
				return
			}
			c.Release()
			for range 2 {
				if _, err := p.Call(serverBox, 1, 3*time.Millisecond, nil); !errors.Is(err, rpc.ErrUncertain) {
					t.Errorf("a request that is not answered: %v", err)
				}
			}
			c, err = p.Start(serverBox, 9, time.Second, nil)
			if err != nil {
				t.Error(err)
				return
			}
			ep.Sleep(100 * time.Millisecond)
			if err := p.Wait(c); err != nil || c.Status != 9 {
				t.Errorf("behind a pause: status %d, %v", c.Status, err)
			}
			c.Release()
			if late := p.Stats().Late; late != 2 {
				t.Errorf("%d late answers, want 2", late)
			}
		}
		r(t, server, client)
	})
}
