package cluster

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Options parameterize a keeper. Zero values mean defaults.
type Options struct {
	// Lease is how long a master's tenure lasts unless it is renewed. A pool is without a master
	// for about that long when its master dies. The default is 100 ms.
	Lease time.Duration
	// Tick is the pause between two rounds; the default is a quarter of the lease.
	Tick time.Duration
	// NodePatience is how long a memory node may leave a READ unanswered before it counts as dead;
	// the default is 10 leases. A node that is known to be down counts as dead at once.
	NodePatience time.Duration
	// Stop is called once a tick and reports whether to end; nil: the keeper ends with its
	// endpoint.
	Stop func() bool
	// Log is called with each event.
	Log func(Event)
	// Tell, if not nil, publishes what the keeper did, but for what is routine: elections of a
	// moment, and epochs without a sweep. It is called between two actions of the keeper, with its
	// endpoint, which has joined v, and with at most MostUntold events. It must return within the
	// given time. What it failed to publish is passed to it again later.
	Tell func(ep rdma.Endpoint, v *rdma.View, did []Event, within time.Duration) error
}

// MostUntold bounds the events that wait for Tell. The oldest ones are dropped.
const MostUntold = 32

func (o *Options) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&o.Lease, 100*time.Millisecond)
	set(&o.Tick, o.Lease/4)
	set(&o.NodePatience, 10*o.Lease)
	if o.Stop == nil {
		o.Stop = func() bool { return false }
	}
	if o.Log == nil {
		o.Log = func(Event) {}
	}
}

// NewRecoverer makes the recoverer of a master, on the endpoint that it must use. The keeper owns
// that endpoint. At that time the view may be busy, and nodes in it may be down. The endpoint
// renews the master's lease as it is used, so the recoverer may take its time, and may sleep. The
// recoverer does not join views: the keeper joins for it.
type NewRecoverer func(ep rdma.Endpoint) (Recoverer, error)

// keeper is one process's candidate for the pool's master, and the master while role says so. It
// belongs to one task.
type keeper struct {
	// The caller of Keep owns the endpoint. Only the keeper and its recoverer use it, one after the
	// other.
	ep   rdma.Endpoint
	f    rdma.Fabric
	make NewRecoverer
	o    Options
	// The tenure; Owner 0: the process is not master.
	role rdma.Role
	// The recoverer of this tenure; nil: none was needed yet.
	m Recoverer
	// A recoverer has failed: its verbs may still be in flight. Then the keeper must not resign,
	// since a successor relies on nothing being in flight.
	dirty bool
	// A crash may have left memory that only a sweep finds.
	needsSweep bool
	// This tenure has asked a Piecewise recoverer whether an earlier one left something to sweep.
	asked bool
	// How long the pieces of the present sweep have taken so far.
	swept time.Duration
	// What the pool of a QuorumRecoverer needs, as far as the keeper knows.
	need Need
	// What an Attendant has begun goes on elsewhere.
	attends bool
	// The epoch up to which this tenure has fenced off all workers, and when it did.
	fenced   uint64
	fencedAt time.Duration
	// When the view became idle, as far as this tenure knows: when the tenure began, or its last
	// barrier ended.
	idle time.Duration
	// A vacancy waits: see restoreDelayLeases.
	restoreWaits bool
	// How long the last Mend took.
	mended time.Duration
	// The last Mend has made something grow, or clients want that, so another one may be due soon.
	grows bool
	// The client of the recovery that failed last.
	failedLast rdma.ClientID
	// The keeper resigns for clients that ask for it.
	yields bool

	// By node.
	probes []probe
	// When the last probe was.
	probed time.Duration
	// What failed, or has to wait, and is not tried for a while.
	rests []rest
	// Failures of ticks in a row.
	faults int
	// What is to be published by Options.Tell.
	told telling
}

// probe is the state of a node's READs.
type probe struct {
	// A READ without an answer yet; nil: none is in flight. The keeper owns it.
	flying *rdma.Batch
	// For how long it has been in flight, as far as the keeper was running.
	silent time.Duration
	// The last READ has failed.
	failed bool
	// How long ago the first of the READs failed that have failed in a row, as far as the keeper
	// was running.
	failing time.Duration
}

// rest keeps the keeper from trying something over and over.
type rest struct {
	what target
	// Until then it is not tried.
	until time.Duration
	// How often it has rested; the time doubles with each, up to 64 leases.
	tries int
	// It has failed, as opposed to having to wait.
	failed bool
}

// target is a thing to do that may rest: a client to recover, a node to restore, a Hold, what an
// Attendant does, or to make the store grow. The zero target is a sweep.
type target struct {
	client rdma.ClientID
	node   int // plus one; 0: none
	hold   bool
	attend bool
	grow   bool
}

// Keep makes the caller a candidate for the pool's master, until Stop or until the endpoint is
// closed. The master replaces dead nodes and recovers dead clients while other clients go on. If
// the master dies in the middle of that, another keeper takes over and begins again. The same
// happens to a master that is slow. What the slow one does afterwards is harmless: it was fenced
// off, so its Keep returns an error that wraps rdma.ErrRevoked. Its process may begin again with
// another endpoint. The same error ends a Keep that was asked to hold (see Hold) while verbs of a
// failed recoverer may be in flight.
//
// Keep is the only user of the endpoint, and of the recoverer made on it. It returns nil if it was
// stopped.
func Keep(ep rdma.Endpoint, f rdma.Fabric, m NewRecoverer, o Options) error {
	o.defaults()
	k := &keeper{ep: ep, f: f, make: m, o: o, probes: make([]probe, f.Nodes()), yields: true}
	for !o.Stop() {
		more, err := k.tick()
		switch {
		case errors.Is(err, rdma.ErrClosed):
			return nil
		case errors.Is(err, rdma.ErrRevoked):
			k.dirty = false // it was fenced off, so none of its verbs lands any more
			k.resign()
			return fmt.Errorf("keep the pool: %w", err)
		case errors.Is(err, errAsked) && k.dirty:
			// Closing the endpoint ends its tenure and its verbs.
			return fmt.Errorf("keep the pool: %w: %w", err, rdma.ErrRevoked)
		case err != nil:
			k.ep.Sleep(k.pause(err))
		case !more:
			k.faults = 0
			k.ep.Sleep(k.rhythm())
		}
	}
	k.tellLast()
	k.resign()
	return nil
}

// rhythm is how long to wait when there is nothing to do. A candidate looks less often than a
// master: many may be waiting. While something grows the pool is idle for as long as it was busy.
func (k *keeper) rhythm() time.Duration {
	switch {
	case k.role.Owner == 0:
		return max(k.o.Tick, k.o.Lease/4)
	case k.grows:
		return min(k.o.Tick, k.mended)
	}
	return k.o.Tick
}

// pause returns how long to wait after a failed tick. After a changed view or a dead node the
// keeper looks again soon; a lease is lost otherwise. Other failures wait longer each time, up to a
// bound.
func (k *keeper) pause(err error) time.Duration {
	if errors.Is(err, errAsked) {
		return yieldLeases * k.o.Lease
	}
	if errors.Is(err, errAlone) { // meanwhile a candidate that is not cut off gets the role
		k.log(Event{What: Failed, Err: err})
		return 2 * k.o.Lease
	}
	if errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrNodeDown) && !errors.Is(err, rdma.ErrUnreachable) {
		return k.o.Tick / 4
	}
	k.log(Event{What: Failed, Err: err})
	k.faults = min(k.faults+1, 8)
	longest := 5 * k.o.Lease
	if errors.Is(err, rdma.ErrUnreachable) { // it may return soon, and dead nodes are not replaced until then
		longest = k.o.Lease / 2
	}
	return min(k.o.Tick<<k.faults, max(k.o.Tick, longest))
}

// log reports an event to Options.Log, and keeps it for Options.Tell.
func (k *keeper) log(e Event) {
	e.At, e.Tenure = k.ep.Now(), k.role.Epoch
	k.o.Log(e)
	if k.o.Tell != nil {
		k.told.add(e)
	}
}

// resign ends the tenure. If verbs of a failed recoverer may be in flight it does not resign: the
// lease expires, and the next master fences them off. The recoverer is dropped, since its knowledge
// may not hold in a later tenure.
func (k *keeper) resign() {
	if k.role.Owner != 0 && !k.dirty {
		k.f.Resign(k.role)
	}
	k.role, k.m = rdma.Role{}, nil
}

// lead makes the caller master, or makes sure that it still is. It reports false if another
// client is master. A check of the lease is not a fence: verbs that the caller posts behind it
// may land after the tenure, until the next master's first fence.
func (k *keeper) lead() (bool, error) {
	if k.role.Owner != 0 {
		err := k.prolong()
		if errors.Is(err, errOver) {
			return false, nil
		}
		return err == nil, err
	}
	// Succeeds only if there is no master, or its lease is over.
	r, ok, err := k.f.TryMaster(k.ep.Client(), k.o.Lease)
	if err != nil || !ok {
		return false, err
	}
	k.elected(r)
	return true, nil
}

// elected notes a new tenure. It has fenced off nothing yet, and knows of no idle time of the view
// before.
func (k *keeper) elected(r rdma.Role) {
	k.role, k.idle, k.fenced, k.asked, k.swept = r, k.ep.Now(), 0, false, 0
	k.log(Event{What: Elected, Epoch: r.Epoch})
}

// restoreDelayLeases is for how many leases the view stays idle before a vacancy is filled. Writes
// wait while a dead node's epoch is mended, and again while the node is restored, which copies all
// that it held. In between they are let through, so that no write waits for both. Meanwhile the
// other replicas serve.
const restoreDelayLeases = 4

// tick does the first of the things that are due. It reports whether something else may be due.
//
// It may be interrupted at any verb, and another keeper then begins with a tick of its own. What a
// crash leaves:
//   - before barrier's Advance: the pool as it was;
//   - behind it: a busy view, so the next master begins with a barrier of its own, in a later
//     epoch. Nodes that were expelled, but are not gone in the view, do not answer its READs
//     either. A spare that was half written is no stand-in, and is written from the beginning;
//   - in recover: a client that is still listed, and is recovered again from the beginning.
func (k *keeper) tick() (more bool, err error) {
	leads, err := k.lead()
	if err != nil {
		return false, err
	}
	v, err := k.ep.Join() // candidates join, too: so they learn that they were fenced off
	if err != nil {
		return false, err
	}
	k.tell(&v)
	if !leads {
		return false, nil
	}
	if k.m == nil {
		if k.m, err = k.make(&leasedEndpoint{k.ep, k}); err != nil {
			return false, fmt.Errorf("make a recoverer: %w", err)
		}
	}
	if e, ok := k.m.(QuorumRecoverer); ok {
		return k.recoverQuorum(e, v)
	}
	down, err := k.probe(v)
	if err != nil {
		return false, err
	}
	if a, ok := k.m.(Accuser); ok && !v.Busy && len(down) == 0 {
		down = a.Hung(v)
	}
	// A busy view has no master that works on it: this one is the master. And a tenure that follows
	// another one's has to fence off the earlier master's verbs (FenceEpoch) before anything else.
	if v.Busy || len(down) > 0 || v.Epoch < k.role.FenceEpoch {
		return true, k.barrier(v, down, nil)
	}
	if a, ok := k.m.(Attendant); ok {
		if more, err := k.attend(a, v); more || err != nil {
			return more, err
		}
	}
	if g, ok := k.m.(Grower); ok {
		if more, err := k.grow(g, v); more || err != nil {
			return more, err
		}
	}
	s := k.vacancy(v)
	if k.restoreWaits = s != nil && k.ep.Now()-k.idle < restoreDelayLeases*k.o.Lease; s != nil && !k.restoreWaits {
		return true, k.barrier(v, nil, s)
	}
	return k.recover(v)
}

// attend calls a recoverer that is an Attendant. If that fails it rests, and the keeper goes on
// with its other work.
func (k *keeper) attend(a Attendant, v rdma.View) (more bool, err error) {
	what := target{attend: true}
	if k.resting(what) {
		return false, nil
	}
	more, err = a.Attend(v)
	k.attends = err == nil && a.Waits()
	if err != nil {
		return false, k.failed(what, fmt.Errorf("attend to the store: %w", err))
	}
	k.forget(what)
	return more, nil
}

// grow begins an epoch in which a Grower grows, if clients want that. Between two such epochs the
// view is idle for as long as it was busy, so that clients go on. A Mend that made nothing grow
// makes the target rest.
func (k *keeper) grow(g Grower, v rdma.View) (more bool, err error) {
	what := target{grow: true}
	if k.resting(what) || k.grows && k.ep.Now()-k.idle < k.mended {
		return false, nil
	}
	k.grows, err = g.Wants(v)
	if err != nil || !k.grows {
		return false, err
	}
	needsSweep := k.needsSweep // this barrier leaves nothing more to sweep: no client has died
	if err := k.barrier(v, nil, nil); err != nil {
		return false, err
	}
	k.needsSweep = needsSweep
	if k.grows = g.Growth() != ""; k.grows {
		k.forget(what)
	} else {
		k.rest(what)
	}
	return false, nil
}

// recover recovers one dead client. If there is none it sweeps, if a crash has left something;
// and if nothing else is due it yields to a Hold.
func (k *keeper) recover(v rdma.View) (more bool, err error) {
	clients, err := rdma.ListJoined(k.ep, k.f)
	if err != nil {
		return false, err
	}
	// A client's recovery may wait for what another dead client has begun. So after a failure the
	// next clients are tried first.
	if i := slices.IndexFunc(clients, func(c rdma.Client) bool { return c.ID > k.failedLast }); i > 0 {
		clients = slices.Concat(clients[i:], clients[:i])
	}
	for _, c := range clients {
		if c.Alive || c.ID == k.ep.Client() || k.resting(target{client: c.ID}) {
			continue
		}
		return true, k.recoverClient(v, c)
	}
	if k.restoreWaits { // filling the vacancy will leave more to sweep
		return false, nil
	}
	if k.needsSweep {
		return true, k.sweep(v)
	}
	if more, err := k.unswept(v); more || err != nil {
		return more, err
	}
	return false, k.yield(clients)
}

// unswept reports whether an earlier tenure left something to sweep, or a sweep of this one that
// failed.
func (k *keeper) unswept(v rdma.View) (bool, error) {
	p, ok := k.m.(Piecewise)
	if !ok || k.asked || k.resting(target{}) {
		return false, nil
	}
	more, err := p.Unswept(v)
	if err != nil {
		return false, err
	}
	k.asked, k.needsSweep = true, more
	return more, nil
}

// sweep sweeps, or does a piece of a sweep. It comes when nothing else is due, since no other
// work waits for the memory that it frees. The sweep of a QuorumRecoverer needs an epoch: see
// renew. If a sweep fails, it is tried again after the next crash; or after a rest, if the
// recoverer is Piecewise and reports that something is left.
func (k *keeper) sweep(v rdma.View) error {
	if _, ok := k.m.(QuorumRecoverer); ok {
		return k.renew(v)
	}
	began := k.ep.Now()
	if err := k.m.Sweep(v); err != nil {
		k.dirty = true
		k.needsSweep, k.asked = false, false
		return k.failed(target{}, fmt.Errorf("sweep: %w", err))
	}
	k.needsSweep, k.asked = false, false
	k.forget(target{})
	k.swept += k.ep.Now() - began
	if more, err := k.unswept(v); more || err != nil {
		return err
	}
	k.log(Event{What: Swept, Epoch: v.Epoch, Took: k.swept})
	k.swept = 0
	return nil
}

// recoverClient fences a client off, recovers it, and removes it from the list of clients, in
// this order. Recover relies on the fence: no verb of the client lands while its operations are
// completed. Forget relies on Recover: the identity may be given to another client from then on.
// A crash before the end leaves a client that is listed, and the recovery is repeated: see
// Recoverer. If a node does not answer, a QuorumRecoverer pool needs an epoch, which expels the
// node.
func (k *keeper) recoverClient(v rdma.View, c rdma.Client) error {
	began := k.ep.Now()
	// Fencing and recovery belong to this tenure.
	if err := k.prolong(); err != nil {
		return err
	}
	if err := k.f.RevokeLife(c); err != nil {
		if errors.Is(err, rdma.ErrNodeDown) {
			k.need = NeedSweep
		}
		return k.failed(target{client: c.ID}, fmt.Errorf("recover client %d: %w", c.ID, err))
	}
	if err := k.m.Recover(v, c.ID); err != nil {
		k.failedLast = c.ID
		k.dirty = true
		return k.failed(target{client: c.ID}, fmt.Errorf("recover client %d: %w", c.ID, err))
	}
	k.needsSweep = true
	e := Event{What: Recovered, Epoch: v.Epoch, Client: c, Took: k.ep.Now() - began, Report: k.report()}
	// From here on the identity may be given to another client: nothing of the old one may be left
	// by now.
	err := k.f.Forget(c)
	if errors.Is(err, rdma.ErrHeld) { // its process lives and holds the identity: the keeper waits for its end
		e.What, err = Attached, nil
		k.rest(target{client: c.ID})
	} else if err == nil {
		k.forget(target{client: c.ID})
		k.wake()
	}
	k.log(e)
	return err
}

// report returns what the recoverer says of its last recovery.
func (k *keeper) report() string {
	if r, ok := k.m.(Reporter); ok {
		return r.Report()
	}
	return ""
}

// failed makes something rest that failed for reasons of its own, so that other things are done
// meanwhile. Errors that concern the whole tick are returned instead.
func (k *keeper) failed(what target, err error) error {
	if errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrClosed) ||
		errors.Is(err, rdma.ErrRevoked) {
		return err
	}
	// Its next attempt comes later, so the tick can go on with other things.
	k.rest(what)
	k.find(what).failed = true
	k.log(Event{What: Failed, Err: err})
	return nil
}

// wake makes the failed recoveries of clients due at once, after another one has succeeded: they
// may have waited for it. Each success leaves fewer, so this ends.
func (k *keeper) wake() {
	for i := range k.rests {
		if r := &k.rests[i]; r.failed && r.what.client != 0 {
			r.until = 0
		}
	}
}

// find returns the rest of a target, also one that is over; nil: it never rested, or has succeeded
// since.
func (k *keeper) find(what target) *rest {
	for i := range k.rests {
		if k.rests[i].what == what {
			return &k.rests[i]
		}
	}
	return nil
}

// resting reports whether a target must not be tried yet.
func (k *keeper) resting(what target) bool {
	r := k.find(what)
	return r != nil && k.ep.Now() < r.until
}

// rest keeps a target from being tried for a while: two leases at first, and twice as long each
// time, up to 64.
func (k *keeper) rest(what target) {
	r := k.find(what)
	if r == nil {
		k.rests = append(k.rests, rest{what: what})
		r = &k.rests[len(k.rests)-1]
	}
	r.tries = min(r.tries+1, 6)
	r.until = k.ep.Now() + k.o.Lease<<r.tries
}

// forget removes a target that has succeeded, or does not apply any more.
func (k *keeper) forget(what target) {
	k.rests = slices.DeleteFunc(k.rests, func(r rest) bool { return r.what == what })
}
