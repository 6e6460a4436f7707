package membership

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership/history"
)

// network is acceptors behind a network that loses, delays, doubles and reorders messages.
type network struct {
	*world
	acceptors []*Acceptor
	crashed   []bool
	lost      float64 // of messages
	twice     float64
	slow      float64 // of messages that come much later, than proposers wait for too
	trips     int
	known     map[string]uint64 // by key, the latest version that some operation returned
	broken    error
}

// restart gives a node an acceptor that knows what the one before has promised, and nothing else.
func (n *network) restart(node int) {
	was := n.acceptors[node]
	a := NewAcceptor(was.limits)
	a.page = was.page
	for key := range was.slots {
		p, _ := was.Promise(key)
		a.Restore(p)
	}
	n.acceptors[node] = a
}

const askTime = 20 * time.Millisecond

func (n *network) delay() time.Duration {
	if n.chance(n.slow) {
		return n.between(0, 10*askTime)
	}
	return n.between(50*time.Microsecond, time.Millisecond)
}

// user is a process's way to the network.
type user struct {
	n      *network
	t      *task
	listed map[string]*Answer // by node and question
}

func (u *user) pause(d time.Duration) { u.t.sleep(u.n.between(0, d)) }

type reply struct {
	a   *Answer
	err error
}

func (u *user) ask(q *Question, take func(a *Answer, err error) bool) {
	n := u.n
	var inbox []reply
	open := true
	for node := range n.acceptors {
		answered := false
		finish := func(a *Answer, err error) {
			if !answered && open {
				answered = true
				inbox = append(inbox, reply{a, err})
				u.t.wake()
			}
		}
		u.put(node, q, finish)
		n.after(askTime, func() { finish(nil, fmt.Errorf("node %d: no answer", node)) })
	}
	for range n.acceptors {
		for len(inbox) == 0 {
			u.t.wait()
		}
		r := inbox[0]
		inbox = inbox[1:]
		if take(r.a, r.err) {
			break
		}
	}
	open = false
	n.trips++
}

// put puts a question to a node as Quorum does: a list begins with an earlier one.
func (u *user) put(node int, q *Question, finish func(a *Answer, err error)) {
	if q.Kind != KindPeekAll {
		u.n.send(node, q, func(a *Answer) { finish(a, nil) })
		return
	}
	at := fmt.Sprint(node, q.Key, q.With)
	l := relist(q, u.listed[at])
	var ask func()
	ask = func() {
		once := true // an answer that comes twice is of the same question
		u.n.send(node, l.ask(), func(a *Answer) {
			if !once {
				return
			}
			once = false
			switch a, err := l.take(a); {
			case err == nil && a == nil:
				ask()
			case err == nil:
				u.listed[at] = a
				finish(a, nil)
			default:
				u.n.broken = errors.Join(u.n.broken, err) // no acceptor lies
			}
		})
	}
	ask()
}

// send brings a question to a node, perhaps twice, perhaps not at all, and so its answers.
func (n *network) send(node int, q *Question, answer func(a *Answer)) {
	copies := 1
	if n.chance(n.twice) {
		copies = 2
	}
	for range copies {
		if n.chance(n.lost) {
			continue
		}
		n.after(n.delay(), func() {
			if n.crashed[node] {
				return
			}
			a := n.acceptors[node].Answer(q)
			if !n.chance(n.lost) {
				n.after(n.delay(), func() { answer(a) })
			}
		})
	}
}

// register is a client that uses records for a while. One that crashes leaves its last Swap open.
type register struct {
	p    *proposer
	log  *history.Log
	n    *network
	id   int
	keys int
	t    *task
	err  error
	last func() // notes an operation that has not returned
	done int    // Swaps that succeeded
	open int    // operations of unknown outcome
}

func (r *register) run(turns int) {
	for i := range turns {
		if r.err != nil {
			return
		}
		if r.t.w.chance(0.1) {
			r.look()
			continue
		}
		r.turn(fmt.Sprintf("key%d", r.t.w.IntN(r.keys)), fmt.Sprintf("%d.%d", r.id, i))
		r.t.sleep(r.t.w.between(0, 2*time.Millisecond))
	}
}

func (r *register) turn(key, to string) {
	if v := r.n.known[key]; v > 0 {
		if seen, err := r.p.later(key, v-1); err == nil && !seen {
			r.err = fmt.Errorf("a watch of %s does not see version %d", key, v)
		}
	}
	began := r.log.Begin()
	s, err := r.p.load(key)
	if err != nil {
		r.check(err)
		return
	}
	r.n.known[key] = max(r.n.known[key], s.Version)
	from := string(s.Value)
	if r.err = r.log.Loaded(r.id, key, began, from, s.Version); r.err != nil || r.t.w.chance(0.4) {
		return
	}
	began = r.log.Begin()
	r.last = func() { r.log.Swapped(r.id, key, began, from, to, false, false) }
	ok, err := r.p.swap(key, s.Version, []byte(to))
	r.last = nil
	if ok {
		r.done++
	}
	if err != nil {
		r.check(err)
	}
	switch {
	case err == nil:
		r.log.Swapped(r.id, key, began, from, to, ok, true)
	case errors.Is(err, ErrUncertain):
		r.log.Swapped(r.id, key, began, from, to, false, false)
	} // any other error: nothing was proposed
}

// check accepts that too few answer.
func (r *register) check(err error) {
	r.open++
	if !errors.Is(err, ErrUnreachable) {
		r.err = err
	}
}

func (r *register) look() {
	began, first := r.log.Begin(), fmt.Sprintf("key%d", r.t.w.IntN(r.keys))
	s, all, err := r.p.look(first, "key")
	if err != nil {
		r.check(err)
		return
	}
	r.err = errors.Join(r.err, r.log.Loaded(r.id, first, began, string(s.Value), s.Version))
	found := map[string]Record{}
	for i, rec := range all {
		if i > 0 && all[i-1].Key >= rec.Key {
			r.err = fmt.Errorf("%s is listed behind %s", rec.Key, all[i-1].Key)
		}
		found[rec.Key] = rec
	}
	for k := range r.keys {
		key := fmt.Sprintf("key%d", k)
		r.err = errors.Join(r.err, r.log.Loaded(r.id, key, began, string(found[key].Value), found[key].Version))
	}
}

// TestQuorumSim has clients use records kept by acceptors of which a minority crashes, over a
// network that breaks everything it may.
func TestQuorumSim(t *testing.T) {
	swaps, unknown := 0, 0
	n := forSeeds(t, 2000, func(t *testing.T, seed uint64) {
		s, u := quorumRun(t, seed)
		swaps += s
		unknown += u
	})
	if !t.Failed() && n >= enough && (swaps < 4*n || unknown < n || unknown > 4*swaps) {
		t.Errorf("%d swaps, and %d operations of unknown outcome, in %d runs: too few or too many", swaps, unknown, n)
	}
	t.Logf("%d swaps, %d operations of unknown outcome", swaps, unknown)
}

func quorumRun(t *testing.T, seed uint64) (swaps, unknown int) {
	w := newWorld(t, seed)
	nodes := 1 + w.IntN(5)
	n := &network{world: w, crashed: make([]bool, nodes), known: map[string]uint64{}}
	for range nodes {
		a := NewAcceptor(LimitsFor(nodes, 10))
		if w.chance(0.5) {
			a.page = 0 // an entry in each answer to a list
		}
		n.acceptors = append(n.acceptors, a)
	}
	for range w.IntN(3) {
		w.after(w.between(0, 60*time.Millisecond), func() { n.restart(w.IntN(nodes)) })
	}
	if w.chance(0.7) {
		n.lost, n.twice, n.slow = 0.15*w.Float64(), 0.2*w.Float64(), 0.3*w.Float64()
	}
	log := history.New()
	var users []*register
	for id := range 2 + w.IntN(3) {
		r := &register{log: log, n: n, id: id, keys: 2}
		w.spawn(func(task *task) {
			r.t = task
			r.p = &proposer{nodes: nodes, id: fmt.Sprint("user", id), wire: &user{n, task, map[string]*Answer{}}}
			r.run(8 + w.IntN(10))
		})
		if w.chance(0.2) {
			w.after(w.between(0, 30*time.Millisecond), func() {
				if r.t != nil {
					r.t.crashed = true
				}
			})
		}
		users = append(users, r)
	}
	for _, node := range w.Perm(nodes)[:w.IntN((nodes-1)/2+1)] {
		w.after(w.between(0, 60*time.Millisecond), func() { n.crashed[node] = true })
	}
	w.run(time.Minute)
	for _, r := range users {
		if r.last != nil {
			r.last()
		}
		if r.err != nil {
			t.Errorf("seed %d: user %d: %v", seed, r.id, r.err)
		}
		if !r.t.done && !r.t.crashed {
			t.Errorf("seed %d: user %d waits for ever", seed, r.id)
		}
		swaps += r.done
		unknown += r.open
	}
	n.lost, n.slow = 0, 0
	last := &register{log: log, n: n, id: len(users), keys: 2}
	w.spawn(func(task *task) {
		last.t = task
		last.p = &proposer{nodes: nodes, id: "last", wire: &user{n, task, map[string]*Answer{}}}
		last.run(10)
	})
	w.run(2 * time.Minute)
	if n.broken != nil {
		t.Errorf("seed %d: %v", seed, n.broken)
	}
	if last.err != nil || last.open > 0 || !last.t.done {
		t.Errorf("seed %d: over a network that works again, %d operations failed (%v)", seed, last.open, last.err)
	}
	if err := log.Check(); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	w.unwind()
	return swaps, unknown
}
