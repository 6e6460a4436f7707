package consul

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
)

// Patience is how long this process waits for an agent that does not answer, beyond a call's
// Timeout. An operator's command waits. A keeper and a memory node wait at their start only, and
// fail fast later: their leases depend on calls that end in time.
type Patience struct {
	// Wait bounds each call that finds no agent. After the first call that waited in vain the
	// process waits no more.
	Wait time.Duration
	// Say is called once, when a call takes longer than Timeout or fails, with the agent's address
	// and the reason. why is nil if there was no answer at all.
	Say func(agent string, why error)

	ctx  context.Context
	once sync.Once
}

// patience is the Patience of this process; nil: calls are bounded by Timeout.
var patience atomic.Pointer[Patience]

// BePatient makes this process wait for agents until ctx ends, or until BeImpatient. Only mains and
// package ops call it.
func BePatient(ctx context.Context, p *Patience) {
	p.ctx = ctx
	patience.Store(p)
}

// BeImpatient ends what BePatient began, for calls that begin afterwards.
func BeImpatient() { patience.Store(nil) }

func (p *Patience) say(agent string, why error) { p.once.Do(func() { p.Say(agent, why) }) }

// again is the pause between two attempts of a call.
const again = 100 * time.Millisecond

// call runs do with the context of one call. In a patient process the context lasts longer, and an
// attempt that found no agent is repeated where that is safe: if the call only asks, or if it never
// left this machine.
func (a *Agent) call(asks bool, do func(ctx context.Context) error) error {
	p := patience.Load()
	if p == nil {
		ctx, cancel := a.bound()
		defer cancel()
		return do(ctx)
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.Wait)
	defer cancel()
	defer p.sayAfter(a.timeout, a.address)()
	for share := a.timeout; ; share *= 2 {
		err := a.attempt(ctx, asks, share, do)
		if !absent(err) || !asks && !unsent(err) {
			return err
		}
		if ctx.Err() == nil {
			p.say(a.address, a.cause(err))
			sleep(ctx, again)
		}
		switch {
		case p.ctx.Err() != nil:
			return p.ctx.Err()
		case ctx.Err() != nil:
			patience.CompareAndSwap(p, nil)
			return err
		}
	}
}

// sayAfter calls Say after a time without an answer, unless it is stopped before. Say is not called
// after stop has returned.
func (p *Patience) sayAfter(d time.Duration, agent string) (stop func()) {
	said := make(chan struct{})
	t := time.AfterFunc(d, func() {
		defer close(said)
		p.say(agent, nil)
	})
	return func() {
		if !t.Stop() {
			<-said
		}
	}
}

// attempt makes one attempt. A question gets a share of the time, longer with each attempt, so that
// a dead connection does not use up all of it.
func (a *Agent) attempt(ctx context.Context, asks bool, share time.Duration, do func(ctx context.Context) error) error {
	if asks {
		limited, cancel := context.WithTimeout(ctx, share)
		defer cancel()
		ctx = limited
	}
	return do(ctx)
}

// absent reports whether a call failed because no agent answered, or because the agent has no
// servers yet.
func absent(err error) bool {
	var status api.StatusError
	if errors.As(err, &status) {
		return status.Code >= http.StatusInternalServerError && !denied(err)
	}
	return errors.As(err, new(*url.Error)) || errors.Is(err, context.DeadlineExceeded)
}

// unsent reports whether the call found no connection. Then nothing of it can land later.
func unsent(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}
