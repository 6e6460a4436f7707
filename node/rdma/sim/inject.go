package sim

import (
	"fmt"
	"strconv"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/random"
)

// stretch is how many times as long something takes; 0 is 1.
type stretch float64

// of returns how long something takes that takes d else.
func (f stretch) of(d int64) int64 {
	if f == 0 {
		return d
	}
	return int64(float64(d) * float64(f))
}

// interval is a span of virtual time, its end included.
type interval struct {
	from, to int64
	factor   float64
	node     int
}

// holds reports whether a moment lies in it.
func (i *interval) holds(t int64) bool { return i.from <= t && t <= i.to }

// spanOf returns when a fault of some length is, from its At on.
func spanOf(f *Fault) interval {
	return interval{from: int64(f.At), to: int64(f.At + f.For), factor: f.Factor, node: f.Node}
}

// injector lets faults happen.
//
// There are three ways. Faults at a time are events, which are scheduled when the pool is made or
// the client begins: outages, deaths, crashes, strikes. Spans are looked at where a message passes:
// slow nodes and partitions. Faults at a verb lie with the client, or the node, until it comes to
// that verb. None of them draws anything that another one, or the network, would draw.
type injector struct {
	*engine
	sched *scheduler
	pool  *pool
	roots int // clients that were started
}

// prepareFaults lets the faults of nodes happen. Those of clients wait for their clients. A fault
// that is wrong ends the Run before it begins.
func (in *injector) prepareFaults() {
	for i := range in.opts.Faults {
		f := &in.opts.Faults[i]
		if err := f.Check(len(in.pool.nodes)); err != nil {
			in.fail(fmt.Errorf("fault %d: %w", i+1, err))
			continue
		}
		switch {
		case f.Outage() && in.opts.PMem == nil:
			in.fail(fmt.Errorf("fault %d: %v: its memory is not persistent", i+1, f))
		case f.Outage():
			in.at(int64(f.At), event{kind: outage, node: int32(i)})
			in.at(int64(f.At+f.For), event{kind: comeback, node: int32(i)})
		case f.Kind == SlowFault:
			for n := range in.pool.nodes {
				if f.Node == AnyNode || f.Node == n {
					in.pool.nodes[n].slow = append(in.pool.nodes[n].slow, spanOf(f))
				}
			}
		case f.Kind == CrashFault && f.Client == "" && f.Verb == 0:
			in.pool.KillNodeAfter(f.Node, f.At)
		case f.Kind == CrashFault && f.Client == "":
			// Of several deaths at a verb the first counts.
			n := &in.pool.nodes[f.Node]
			if n.killAt == 0 || f.Verb < n.killAt {
				n.killAt = f.Verb
			}
		}
	}
}

// armFaults gives a client that begins its faults. It is called once for a client, and not for its
// tasks.
func (in *injector) armFaults(w *Worker) {
	for i := range in.opts.Faults {
		f := &in.opts.Faults[i]
		if f.Client == "" || !in.meant(w, f.Client) {
			continue
		}
		switch {
		case f.Kind == PartitionFault:
			w.cuts = append(w.cuts, spanOf(f))
		case f.Kind == CrashFault && f.Verb != 0:
			// The first of several crashes counts. CrashAt, which is called later, replaces it.
			if !w.doomed || f.Verb < w.crashAt {
				w.crashAfter(f.Verb)
			}
		// A FlyFault or LateFault at a time waits for the first verb behind it, and so lies with
		// the client, too.
		case f.Verb != 0 || f.Kind == FlyFault || f.Kind == LateFault:
			w.faults = append(w.faults, f)
		case f.Kind == CrashFault:
			in.at(int64(f.At), event{kind: workerCrash, w: w})
		default:
			in.at(int64(f.At), event{kind: strike, w: w, node: int32(i)})
		}
	}
}

// meant reports whether a fault's client is w, which was started last. Numbers count clients in the
// order in which they were started, tasks left out. A name is its first client's: of those that
// began anew on a node, too.
func (in *injector) meant(w *Worker, client string) bool {
	if client == AnyClient {
		return true
	}
	if client[0] == '#' {
		i, err := strconv.Atoi(client[1:])
		return err == nil && i == in.roots-1
	}
	if client != w.name {
		return false
	}
	for _, other := range in.sched.workers {
		if other != w && other.root == other && other.name == w.name {
			return false // the name's first worker was hit
		}
	}
	return true
}

// hit lets a fault of a client happen now. A stall of a client that is stalled ends when the later
// of the two does. A client that has ended is left alone, and its tasks with it.
func (in *injector) hit(w *Worker, f *Fault) {
	if w.state == finished || w.state == crashed {
		return
	}
	in.trace(Event{Kind: Strike, Worker: w.name, Client: w.ep.id, Step: rdma.Step(f.String())})
	switch f.Kind {
	// The worker is parked, or goes on to its next park: launchWithFaults sees to a stall in the
	// midst of a batch.
	case StallFault:
		w.stalls += f.For
		w.stalledUntil = max(w.stalledUntil, in.now()+int64(f.For))
	// Waits that are under way end as they would have.
	case StepFault:
		w.clock.off += int64(f.By)
	}
}

// Stalled returns how long faults have kept the client from running. Stalls that overlap count
// twice.
func (w *Worker) Stalled() time.Duration { return w.root.stalls }

// launch sends the first n ops of b, which the worker has counted, and pauses where a fault stalls
// it. On machines all lists of the batch get their doorbells behind its last verb.
func (e *endpoint) launch(w *Worker, b *rdma.Batch, n int) {
	if w.root.faults == nil {
		for i := range n {
			e.dispatch(w, b, i)
		}
	} else {
		e.launchWithFaults(w, b, n)
	}
	if e.s.hw != nil {
		e.ringAll(w)
	}
}

// dispatch puts one op on its way, on machines into the list of its doorbell.
func (e *endpoint) dispatch(w *Worker, b *rdma.Batch, i int) {
	if e.s.hw != nil {
		e.enqueue(w, b, i)
	} else {
		e.send(w, b, i)
	}
}

// launchWithFaults is launch for a client with faults at verbs. Crashes are not among them: allow
// has cut n short.
func (e *endpoint) launchWithFaults(w *Worker, b *rdma.Batch, n int) {
	s, r := e.s, w.root
	// Verbs of the batch have the numbers from first + 1 on.
	first := r.sent - uint64(n)
	for i := range n {
		number := first + uint64(i) + 1
		e.fly, e.late = r.delays(s.now(), number)
		e.dispatch(w, b, i)
		s.injector.fireFaultsAt(r, number)
		// A worker that is to crash behind the batch crashes at once, though a stall would hold it
		// up.
		if r.stalledUntil > s.now() && !w.dead() {
			// What was put into lists before the stall goes now: doorbells do not wait for the
			// rest.
			if s.hw != nil {
				e.ringAll(w)
			}
			s.arm(w, r.stalledUntil)
			w.park()
			if s.closing() {
				return
			}
		}
	}
}

// delays returns by how much a client's verb flies, and how late its completion is. Each fault is
// used up by one verb. It is asked in posting order.
func (w *Worker) delays(now int64, number uint64) (fly, late int64) {
	for i, f := range w.faults {
		if f == nil || f.Kind != FlyFault && f.Kind != LateFault {
			continue
		}
		if f.Verb == number || f.Verb == 0 && now >= int64(f.At) {
			if f.Kind == FlyFault {
				fly += int64(f.For)
			} else {
				late += int64(f.For)
			}
			w.faults[i] = nil
		}
	}
	return fly, late
}

// fireFaultsAt lets the faults behind a client's verb happen. Those of a verb that was passed hit,
// too: a change of the membership counts as a verb, and nothing asks behind it.
func (in *injector) fireFaultsAt(w *Worker, number uint64) {
	for i, f := range w.faults {
		if f != nil && (f.Kind == StallFault || f.Kind == StepFault) && f.Verb <= number {
			w.faults[i] = nil
			in.hit(w, f)
		}
	}
}

// cutUntil returns when a partition that holds a message up now is over; 0 when there is none. A
// message is cut off by a partition of its sender, or of its receiver if it is a SEND. Spans hold
// their last moment, so it is over one ns later.
func (net *network) cutUntil(f *flight) (until int64) {
	for _, w := range [...]*Worker{f.root, net.boxes.receiver(f)} {
		if w == nil {
			continue
		}
		for i := range w.cuts {
			c := &w.cuts[i]
			if (c.node == AnyNode || c.node == f.node) && c.holds(net.now()) {
				until = max(until, c.to+1)
			}
		}
	}
	return until
}

// mayBeCut reports whether partitions befall the client of a message, or the one that it is for. It
// spares runs without partitions the work.
func (net *network) mayBeCut(f *flight) bool {
	if f.root != nil && f.root.cuts != nil {
		return true
	}
	to := net.boxes.receiver(f)
	return to != nil && to.cuts != nil
}

// held reports whether a verb, or a piece of it, is held up by a partition on its way to the node;
// then its event comes again, or its requester has given up. What comes behind something that is
// held up is held up, too, so that the order stays. A requester gives up RetryTimeout behind the
// post. Then all batches fail that it had begun on the connection before that, whether they were
// held up, or are still on their way, or wait for the end of a stall that cuts them in two: as with
// a queue pair that goes to error. So no verb lands behind one of its batch that was lost.
//
// Three outcomes: false without an error, and the caller lets it land; false with f.err set, and
// the caller lets it fail; true, and its event is scheduled for the end of the partition. There it
// is asked again: another partition may have begun.
func (net *network) held(f *flight, e event) bool {
	if f.err != nil || !net.mayBeCut(f) {
		return false
	}
	c := &f.ep.conns[f.node]
	bit := uint8(1) // of an entry's blocks one is on its way at a time
	if e.kind == landing {
		bit <<= e.piece
	}
	// It was held up before, and does not count itself among those ahead.
	again := f.waits&bit != 0
	if again {
		f.waits &^= bit
		c.held--
	}
	if f.began < c.lost {
		f.err = rdma.ErrNodeDown // the connection was given up while it was on its way
		return false
	}
	until := net.cutUntil(f)
	switch {
	// What comes in the very moment in which the partition is over goes behind what was held up.
	case until == 0 && (again || c.held == 0):
		return false
	// The requester's last try is in the partition. It is told at posted + RetryTimeout (answer),
	// and what it posted before that moment fails with this verb.
	case until > f.posted+int64(net.opts.RetryTimeout):
		f.err = rdma.ErrNodeDown
		c.lost = max(c.lost, f.posted+int64(net.opts.RetryTimeout))
		return false
	}
	f.waits |= bit
	c.held++
	// until may be 0, where only the order holds it up.
	net.at(max(until, net.now()), e)
	return true
}

// unanswered reports whether an answer is held up by a partition; then it comes again, as an error
// if the requester gives up. An answer that is given up is of a verb that has taken effect: the
// requester does not know. A call's request is held up here as well; if it is given up, the handler
// does not run.
func (net *network) unanswered(f *flight, k kind) bool {
	if f.err != nil || !net.mayBeCut(f) {
		return false
	}
	until := net.cutUntil(f)
	if until == 0 {
		return false
	}
	if most := f.posted + int64(net.opts.RetryTimeout); until > most {
		until = most
		f.err = rdma.ErrNodeDown
		c := &f.ep.conns[f.node]
		c.lost = max(c.lost, most)
	}
	net.at(until, event{kind: k, f: f})
	return true
}

// takeAway takes the nodes of a fault away. One that is dead, or away already, is not hit. away
// names the fault, so that only its own end brings the node back.
func (in *injector) takeAway(fault int) {
	f := &in.opts.Faults[fault]
	for i := range in.pool.nodes {
		n := &in.pool.nodes[i]
		if n.dead || f.Node != AnyNode && f.Node != i {
			continue
		}
		n.away, n.returns = fault+1, true
		if f.Kind == PowerFault {
			// What survives is drawn for each fault and node by itself.
			in.pool.CutPower(i, AnySurvive(in.opts.Seed^random.Mix(uint64(fault)<<16|uint64(i))))
		} else {
			in.pool.kill(i)
		}
	}
}
