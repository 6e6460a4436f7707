package cluster

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Options shape a keeper. Zero values mean defaults.
type Options struct {
	// Lease is a master's tenure, unless it prolongs it: for about as long a pool is without one when
	// its master dies. Default 100 ms.
	Lease time.Duration
	// Tick is the pause between two looks at the pool; default a quarter of the lease.
	Tick time.Duration
	// NodePatience is how long a memory node may leave a READ unanswered before it counts as dead;
	// default 10 leases. One that is known to be down counts at once.
	NodePatience time.Duration
	// Stop is asked once a tick whether to end; nil: the keeper ends with its endpoint.
	Stop func() bool
	// Log is told what the keeper does.
	Log func(Event)
	// Tell, unless nil, puts what the keeper did where others find it. It is called between two things
	// that the keeper does, with its endpoint, which has joined v, with MostUntold events at most, and
	// may take the given time. What it failed to tell is told again later.
	Tell func(ep rdma.Endpoint, v *rdma.View, did []Event, within time.Duration) error
}

// MostUntold bounds the events that wait to be told: the oldest ones are dropped.
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

// NewMender makes the mender of a master, on the endpoint that it is to use. The view may be busy
// by then, and nodes that it has may be down. The endpoint prolongs the master's tenure as it is
// used, so that the mender may take its time, and sleep; it joins views by itself, which the mender
// does not.
type NewMender func(ep rdma.Endpoint) (Mender, error)

// keeper is one process's candidate for a pool's master, and the master while role says so.
type keeper struct {
	ep    rdma.Endpoint
	f     rdma.Fabric
	make  NewMender
	o     Options
	role  rdma.Role
	m     Mender // of this tenure; nil before it is needed
	dirty bool   // a mender failed: verbs of it may be in flight
	// littered: a crash may have left what only a sweep finds.
	littered bool
	// asked: this tenure has asked a Piecewise mender whether an earlier one left something to sweep.
	asked bool
	// swept is how long the pieces of a sweep have taken.
	swept time.Duration
	// need is what the pool of an Enduring mender needs.
	need Need
	// attends: what an Attendant has begun goes on elsewhere.
	attends bool
	// fenced is the epoch to which this tenure has fenced all workers off, and fencedAt when.
	fenced   uint64
	fencedAt time.Duration
	// idle is when the view became idle, as far as this tenure knows; breathing: a vacancy waits, see
	// breath.
	idle      time.Duration
	breathing bool
	// mended is how long the last Mend took; grows: it has made something grow, and may have to again.
	mended time.Duration
	grows  bool
	// failedLast is the client whose recovery failed last.
	failedLast rdma.ClientID
	// yields: it resigns for clients that ask for it.
	yields bool

	probes []probe       // by node
	probed time.Duration // when the last probe was
	rests  []rest        // what failed, or has to wait
	faults int           // failures in a row
	told   telling
}

// probe is a READ that a node has not answered yet; nil: there is none.
type probe struct {
	flying  *rdma.Batch
	silent  time.Duration // for how long it has been in flight
	failed  bool          // the last READ did
	failing time.Duration // since the first of the READs in a row that failed
}

// rest keeps the keeper from trying something again and again.
type rest struct {
	what   target
	until  time.Duration
	tries  int
	failed bool
}

// target is a client to recover, a node to restore, a Hold, what an Attendant does, or to make the
// store grow.
type target struct {
	client rdma.ClientID
	node   int // plus one
	hold   bool
	attend bool
	grow   bool
}

// Keep makes the caller a candidate for the pool's master, until Stop or until the endpoint is
// closed. The master replaces dead nodes and recovers dead clients, while other clients go on. When
// a master dies in the midst of that, another keeper takes over. The same happens to a master that
// is slow. What the slow one does afterwards is harmless, since it was fenced off, and so its Keep
// returns an error wrapping rdma.ErrRevoked. Its process may begin again with another endpoint. So
// may one that was asked to hold still (see Hold) while verbs of a mender that failed may be in
// flight: the error wraps the same.
//
// Keep uses the endpoint, and the mender made on it, alone. It returns nil when it was stopped.
func Keep(ep rdma.Endpoint, f rdma.Fabric, m NewMender, o Options) error {
	o.defaults()
	k := &keeper{ep: ep, f: f, make: m, o: o, probes: make([]probe, f.Nodes()), yields: true}
	for !o.Stop() {
		more, err := k.tick()
		switch {
		case errors.Is(err, rdma.ErrClosed):
			return nil
		case errors.Is(err, rdma.ErrRevoked):
			k.dirty = false // nothing lands any more
			k.resign()
			return fmt.Errorf("keep the pool: %w", err)
		case errors.Is(err, errAsked) && k.dirty: // the end of the endpoint is that of its tenure, and of its verbs
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

// pause returns how long to wait after a failure. A changed view or a dead node means to look again
// at once.
func (k *keeper) pause(err error) time.Duration {
	if errors.Is(err, errAsked) {
		return yieldLeases * k.o.Lease
	}
	if errors.Is(err, errAlone) { // a candidate that is not cut off gets the role
		k.log(Event{What: Failed, Err: err})
		return 2 * k.o.Lease
	}
	if errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrNodeDown) && !errors.Is(err, rdma.ErrUnreachable) {
		return k.o.Tick / 4
	}
	k.log(Event{What: Failed, Err: err})
	k.faults = min(k.faults+1, 8)
	longest := 5 * k.o.Lease
	if errors.Is(err, rdma.ErrUnreachable) { // it may be back, and until then dead nodes are not replaced
		longest = k.o.Lease / 2
	}
	return min(k.o.Tick<<k.faults, max(k.o.Tick, longest))
}

func (k *keeper) log(e Event) {
	e.At, e.Tenure = k.ep.Now(), k.role.Epoch
	k.o.Log(e)
	if k.o.Tell != nil {
		k.told.add(e)
	}
}

// resign ends the tenure, unless verbs may be in flight: then it runs out, and the next master
// drops them. The mender ends with it: what that knows may not be true in a later tenure.
func (k *keeper) resign() {
	if k.role.Owner != 0 && !k.dirty {
		k.f.Resign(k.role)
	}
	k.role, k.m = rdma.Role{}, nil
}

// lead makes the caller master, or makes sure that it still is; false: another client is.
func (k *keeper) lead() (bool, error) {
	if k.role.Owner != 0 {
		err := k.prolong()
		if errors.Is(err, errOver) {
			return false, nil
		}
		return err == nil, err
	}
	r, ok, err := k.f.TryMaster(k.ep.Client(), k.o.Lease)
	if err != nil || !ok {
		return false, err
	}
	k.elected(r)
	return true, nil
}

func (k *keeper) elected(r rdma.Role) {
	k.role, k.idle, k.fenced, k.asked, k.swept = r, k.ep.Now(), 0, false, 0
	k.log(Event{What: Elected, Epoch: r.Epoch})
}

// breath is for how many leases the view is left idle before a vacancy is filled. Writes wait while
// a node's death is mended, and again while its place is filled, which copies all that it held: in
// between they are let through, so that none has to wait for both. Meanwhile the other replicas
// serve.
const breath = 4

// tick does one thing of what there is to do; more: there may be something else.
//
// Everything in it may be interrupted at any verb and done again by another keeper. What a crash
// leaves:
//   - before barrier's Advance: a pool that is as it was;
//   - behind it: a busy view, which makes the next master begin with a barrier of its own, in a later epoch. Nodes that
//     were expelled, but are not gone in the view, do not answer that one's READs either. A spare that was half written
//     is no stand-in, and is written from the beginning;
//   - in recover: a client that is still listed, and recovered again from the beginning.
func (k *keeper) tick() (more bool, err error) {
	leads, err := k.lead()
	if err != nil {
		return false, err
	}
	v, err := k.ep.Join() // candidates, too: it is how they learn that they have to end
	if err != nil {
		return false, err
	}
	k.tell(&v)
	if !leads {
		return false, nil
	}
	if k.m == nil {
		if k.m, err = k.make(&reign{k.ep, k}); err != nil {
			return false, fmt.Errorf("make a mender: %w", err)
		}
	}
	if e, ok := k.m.(Enduring); ok {
		return k.endure(e, v)
	}
	down, err := k.probe(v)
	if err != nil {
		return false, err
	}
	if a, ok := k.m.(Accuser); ok && !v.Busy && len(down) == 0 {
		down = a.Hung(v)
	}
	if v.Busy || len(down) > 0 || v.Epoch < k.role.Beyond {
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
	if k.breathing = s != nil && k.ep.Now()-k.idle < breath*k.o.Lease; s != nil && !k.breathing {
		return true, k.barrier(v, nil, s)
	}
	return k.recover(v)
}

// attend calls a mender that is an Attendant. What it fails in keeps the keeper from nothing else.
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

// grow begins an epoch in which a Grower grows, if clients want that. Views are idle for as long in
// between as they were busy, so that clients go on.
func (k *keeper) grow(g Grower, v rdma.View) (more bool, err error) {
	what := target{grow: true}
	if k.resting(what) || k.grows && k.ep.Now()-k.idle < k.mended {
		return false, nil
	}
	k.grows, err = g.Wants(v)
	if err != nil || !k.grows {
		return false, err
	}
	littered := k.littered // no client is gone that was not before
	if err := k.barrier(v, nil, nil); err != nil {
		return false, err
	}
	k.littered = littered
	if k.grows = g.Growth() != ""; k.grows {
		k.forget(what)
	} else {
		k.rest(what)
	}
	return false, nil
}

// recover recovers one dead client.
func (k *keeper) recover(v rdma.View) (more bool, err error) {
	clients, err := rdma.ListJoined(k.ep, k.f)
	if err != nil {
		return false, err
	}
	// What one waits for may be what another has begun: behind a failure the next ones are tried
	// first.
	if i := slices.IndexFunc(clients, func(c rdma.Client) bool { return c.ID > k.failedLast }); i > 0 {
		clients = slices.Concat(clients[i:], clients[:i])
	}
	for _, c := range clients {
		if c.Alive || c.ID == k.ep.Client() || k.resting(target{client: c.ID}) {
			continue
		}
		return true, k.recoverClient(v, c)
	}
	if k.breathing { // filling a vacancy leaves more to sweep
		return false, nil
	}
	if k.littered {
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
	k.asked, k.littered = true, more
	return more, nil
}

// sweep follows when everything else is done: no other work waits for the memory that it frees.
func (k *keeper) sweep(v rdma.View) error {
	if _, ok := k.m.(Enduring); ok {
		return k.renew(v)
	}
	began := k.ep.Now()
	if err := k.m.Sweep(v); err != nil {
		k.dirty = true
		k.littered, k.asked = false, false // it is tried again after the next crash, or a rest if there is something to sweep
		return k.failed(target{}, fmt.Errorf("sweep: %w", err))
	}
	k.littered, k.asked = false, false
	k.forget(target{})
	k.swept += k.ep.Now() - began
	if more, err := k.unswept(v); more || err != nil {
		return err
	}
	k.log(Event{What: Swept, Epoch: v.Epoch, Took: k.swept})
	k.swept = 0
	return nil
}

func (k *keeper) recoverClient(v rdma.View, c rdma.Client) error {
	began := k.ep.Now()
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
	k.littered = true
	e := Event{What: Recovered, Epoch: v.Epoch, Client: c, Took: k.ep.Now() - began, Report: k.report()}
	err := k.f.Forget(c)
	if errors.Is(err, rdma.ErrHeld) { // fenced off, but not dead: its process has to end first
		e.What, err = Attached, nil
		k.rest(target{client: c.ID})
	} else if err == nil {
		k.forget(target{client: c.ID})
		k.wake()
	}
	k.log(e)
	return err
}

func (k *keeper) report() string {
	if r, ok := k.m.(Reporter); ok {
		return r.Report()
	}
	return ""
}

// failed lets something rest that failed for reasons of its own, so that other things are done
// meanwhile.
func (k *keeper) failed(what target, err error) error {
	if errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrClosed) ||
		errors.Is(err, rdma.ErrRevoked) {
		return err
	}
	k.rest(what)
	k.find(what).failed = true
	k.log(Event{What: Failed, Err: err})
	return nil
}

// wake has those clients tried again at once whose recovery failed: what they had in hand may have
// depended on another dead client that was recovered only now. There are fewer of them each time.
func (k *keeper) wake() {
	for i := range k.rests {
		if r := &k.rests[i]; r.failed && r.what.client != 0 {
			r.until = 0
		}
	}
}

func (k *keeper) find(what target) *rest {
	for i := range k.rests {
		if k.rests[i].what == what {
			return &k.rests[i]
		}
	}
	return nil
}

func (k *keeper) resting(what target) bool {
	r := k.find(what)
	return r != nil && k.ep.Now() < r.until
}

// rest keeps what is to be done from being tried for a while, longer each time.
func (k *keeper) rest(what target) {
	r := k.find(what)
	if r == nil {
		k.rests = append(k.rests, rest{what: what})
		r = &k.rests[len(k.rests)-1]
	}
	r.tries = min(r.tries+1, 6)
	r.until = k.ep.Now() + k.o.Lease<<r.tries
}

func (k *keeper) forget(what target) {
	k.rests = slices.DeleteFunc(k.rests, func(r rest) bool { return r.what == what })
}
