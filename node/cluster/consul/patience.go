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
// Timeout. An operator's command waits; a keeper and a memory node wait at their start, and fail
// fast later: their leases depend on calls that end.
type Patience struct {
	// Wait bounds the calls that find no agent, each alone. After the first that waited in vain the
	// process waits no more.
	Wait time.Duration
	// Say is called once, when a call takes longer than Timeout or fails: with the agent's address and
	// why. why is nil when there was no answer at all.
	Say func(agent string, why error)

	ctx  context.Context
	once sync.Once
}

// patience is that of this process; nil: there is none.
var patience atomic.Pointer[Patience]

// BePatient makes this process wait for agents until ctx ends, or until BeImpatient. It is for
// mains and for package ops.
func BePatient(ctx context.Context, p *Patience) {
	p.ctx = ctx
	patience.Store(p)
}

// BeImpatient ends what BePatient began, for calls that begin from now on.
func BeImpatient() { patience.Store(nil) }

func (p *Patience) say(agent string, why error) { p.once.Do(func() { p.Say(agent, why) }) }

// again is the pause between two tries of a call.
const again = 100 * time.Millisecond

// call runs do with the context of one call. A process that is patient gives it more time. It also
// tries again what failed for want of an agent, where that is safe: a call that only asks, or one
// that never left this machine.
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

// sayAfter says after a time that there was no answer, unless it is stopped before.
func (p *Patience) sayAfter(d time.Duration, agent string) (stop func()) {
	said := make(chan struct{})
	t := time.AfterFunc(d, func() {
		defer close(said)
		p.say(agent, nil)
	})
	return func() {
		if !t.Stop() {
			<-said // nothing is said behind the call
		}
	}
}

// attempt is one try. Questions get a share of the time, longer each try: a connection that is dead
// does not take all of it.
func (a *Agent) attempt(ctx context.Context, asks bool, share time.Duration, do func(ctx context.Context) error) error {
	if asks {
		limited, cancel := context.WithTimeout(ctx, share)
		defer cancel()
		ctx = limited
	}
	return do(ctx)
}

// absent reports whether err is the failure of a call to which no agent answered, or one that has
// no servers yet.
func absent(err error) bool {
	var status api.StatusError
	if errors.As(err, &status) {
		return status.Code >= http.StatusInternalServerError && !denied(err)
	}
	return errors.As(err, new(*url.Error)) || errors.Is(err, context.DeadlineExceeded)
}

// unsent reports whether the call that ended in err found no connection, so that nothing of it can
// land later.
func unsent(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}
