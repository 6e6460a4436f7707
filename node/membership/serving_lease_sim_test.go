package membership

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const nodeLease = 300 * time.Millisecond

// clock runs at its own rate, from its own beginning: up to a sixteenth fast or slow.
type clock struct {
	w     *world
	begin time.Duration
	rate  float64
}

func (w *world) clock() *clock {
	c := &clock{w: w, begin: w.between(0, time.Hour), rate: 1 + (w.Float64()*2-1)/16}
	switch w.IntN(4) {
	case 0:
		c.rate = 1 + 1./16
	case 1:
		c.rate = 1 - 1./16
	}
	return c
}

func (c *clock) now() time.Duration { return c.begin + time.Duration(float64(c.w.now)*c.rate) }

// real is how long d takes on this clock.
func (c *clock) real(d time.Duration) time.Duration { return time.Duration(float64(d)/c.rate) + 1 }

// machine is a node with a serving lease. While it is stalled nothing happens on it, but its clock
// runs on.
type machine struct {
	*ServingLease
	*clock
	c       *machines
	id      int
	stalled time.Duration // until
	cut     bool          // from all others
	asked   func()        // unless nil, happens right after the next round of asking
	served  int           // frames that were answered
}

// machines are the machines of a pool.
type machines struct {
	*world
	nodes  []*machine
	voters int // the first of them
	lost   float64
	fast   bool                  // messages take no time, mostly
	over   map[int]time.Duration // by node: when the wait of the master that expelled it was over
	broken []string
	frames int
}

// serves reports whether the machine may execute a verb, or answer what it executed.
func (m *machine) serves() bool { return m.now() < m.Until() }

// do runs f on m, later when m stands still.
func (m *machine) do(f func()) {
	if m.w.now < m.stalled {
		m.w.after(m.stalled-m.w.now, func() { m.do(f) })
		return
	}
	f()
}

// send brings a message from one machine to another, perhaps twice or never.
func (c *machines) send(from, to *machine, f func()) {
	copies := 1
	if c.chance(c.lost) {
		copies = c.IntN(3)
	}
	for range copies {
		if from.cut || to.cut {
			return
		}
		delay := c.between(0, time.Millisecond)
		if c.chance(c.lost) {
			delay = c.between(0, 2*nodeLease)
		}
		if c.fast {
			delay = 0
		}
		c.after(delay, func() {
			if !to.cut || c.chance(0.1) { // what is under way may still arrive
				to.do(f)
			}
		})
	}
}

// ask asks all others for a lease, every quarter of it.
func (m *machine) ask() {
	m.do(func() {
		round := m.Ask(m.now())
		for _, peer := range m.c.nodes {
			if peer == m {
				continue
			}
			m.c.send(m, peer, func() {
				if peer.Grant(m.id) {
					m.c.send(peer, m, func() { m.Granted(peer.id, round) })
				}
			})
		}
		m.w.after(m.real(nodeLease/4), m.ask)
		if m.asked != nil {
			m.w.after(1, m.asked)
			m.asked = nil
		}
	})
}

// frame executes a verb when the machine may serve, and answers if it still may. It may stand still
// in between.
func (m *machine) frame() {
	m.do(func() {
		m.w.after(m.w.between(0, 20*time.Millisecond), m.frame)
		if !m.serves() {
			return
		}
		m.c.look(m, m.w.now, "serves")
		if m.w.chance(0.01) {
			m.stalled = m.w.now + m.w.between(0, 4*nodeLease) // between looking and executing
		}
		m.w.after(m.w.between(0, 100*time.Microsecond), func() {
			m.do(func() {
				executed := m.w.now
				m.w.after(m.w.between(0, 100*time.Microsecond), func() {
					m.do(func() {
						if m.serves() {
							m.served++
							m.c.frames++
							m.c.look(m, executed, "has answered a frame that it executed")
						}
					})
				})
			})
		})
	})
}

// look notes what a machine does that was expelled for good.
func (c *machines) look(m *machine, at time.Duration, what string) {
	if over, ok := c.over[m.id]; ok && at >= over {
		c.broken = append(c.broken, what)
	}
}

// way is how long a message of a master takes.
func (c *machines) way() time.Duration {
	if c.fast {
		return 0
	}
	return c.between(0, 2*time.Millisecond)
}

// end is the moment from which an expelled node must not serve, even if it does nothing just then.
func (c *machines) end(target int) {
	if m := c.nodes[target]; m.serves() {
		c.broken = append(c.broken, "may serve")
	}
	c.over[target] = c.now
}

// expel is what a master does: it has a majority promise, and waits.
func (c *machines) expel(target int, by *clock) {
	promised := map[int]bool{}
	for _, m := range c.nodes { // those that are no voters promise, too, but do not count
		c.after(c.way(), func() {
			if m.cut || c.chance(c.lost) {
				return
			}
			m.do(func() {
				if !m.Expel(target, 1) {
					c.broken = append(c.broken, "does not promise")
				}
				c.after(c.way(), func() {
					if m.id >= c.voters || promised[m.id] {
						return
					}
					promised[m.id] = true
					if len(promised) == c.voters/2+1 {
						c.after(by.real(ExpelWait(nodeLease)), func() { c.end(target) })
					}
				})
			})
		})
	}
}

// leaseRun lets one or two nodes of a pool be expelled while machines stall, clocks drift and the
// network fails.
func leaseRun(t *testing.T, seed uint64) (c *machines, served, expelled int) {
	w := newWorld(t, seed)
	c = &machines{world: w, over: map[int]time.Duration{}}
	if w.chance(0.7) {
		c.lost = 0.3 * w.Float64()
	} else {
		c.fast = w.chance(0.7)
	}
	n := 2 + w.IntN(4)
	c.voters = n
	if w.chance(0.3) {
		c.voters = 1 + w.IntN(n)
	}
	for id := range n {
		m := &machine{ServingLease: NewServingLease(id, n, c.voters, nodeLease), clock: w.clock(), c: c, id: id}
		c.nodes = append(c.nodes, m)
		w.after(w.between(0, nodeLease), m.ask)
		w.after(w.between(0, nodeLease), m.frame)
		for range w.IntN(4) {
			w.after(w.between(0, 4*time.Second), func() { m.stalled = w.now + w.between(0, 3*nodeLease) })
		}
		if w.chance(0.2) {
			at := w.between(0, 3*time.Second)
			w.after(at, func() { m.cut = true })
			w.after(at+w.between(0, 2*time.Second), func() { m.cut = false })
		}
	}
	victims := w.Perm(n)[:1+w.IntN((n+1)/2)]
	for _, v := range victims {
		m := c.nodes[v]
		expel := func() {
			served += m.served
			m.cut = c.chance(0.5)
			c.expel(v, w.clock())
		}
		w.after(w.between(time.Second, 2*time.Second), func() {
			if c.fast { // the worst moment
				m.asked = expel
			} else {
				expel()
			}
		})
	}
	w.run(5 * time.Second)
	return c, served, len(c.over)
}

func TestServingLeaseSim(t *testing.T) {
	served, expelled := 0, 0
	n := forSeeds(t, 1000, func(t *testing.T, seed uint64) {
		c, s, e := leaseRun(t, seed)
		served += s
		expelled += e
		if len(c.broken) > 0 {
			t.Errorf("seed %d: a node that was expelled %s after the wait (and %d times more)", seed,
				c.broken[0], len(c.broken)-1)
		}
		c.unwind()
	})
	if !t.Failed() && n >= enough && (expelled < n/2 || served < 100*n) {
		t.Errorf("%d nodes expelled, which had answered %d frames: too few", expelled, served)
	}
	t.Logf("%d nodes expelled, which had answered %d frames", expelled, served)
}

// TestServingLeaseServesOn has nodes ask over a network that loses one message of ten: none of them
// ever stops serving.
func TestServingLeaseServesOn(t *testing.T) {
	w := newWorld(t, 1)
	c := &machines{world: w}
	for id := range 5 {
		m := &machine{ServingLease: NewServingLease(id, 5, 3, nodeLease), clock: w.clock(), c: c, id: id}
		c.nodes = append(c.nodes, m)
		w.after(0, m.ask)
	}
	for at := time.Duration(0); at < 20*time.Second; at += time.Millisecond {
		w.run(at)
		c.lost = 0.1 // delays and losses, after the first round
		for _, m := range c.nodes {
			if at > 10*time.Millisecond && !m.serves() {
				t.Fatalf("node %d does not serve at %v", m.id, at)
			}
		}
	}
}

func TestServingLease(t *testing.T) {
	const s = time.Second
	g := NewServingLease(1, 3, 3, s)
	serves := func(until time.Duration) {
		t.Helper()
		if g.Until() != until {
			t.Fatalf("serves until %v, want %v", g.Until(), until)
		}
	}
	serves(0)
	g.Granted(0, 0)
	g.Granted(0, 1)
	serves(0)
	first := g.Ask(10 * s)
	serves(0)
	second := g.Ask(20 * s)
	g.Granted(1, second) // its own vote, which it has
	serves(0)
	g.Granted(2, first)
	serves(11 * s) // from when it asked
	g.Granted(0, second)
	serves(21 * s)
	g.Granted(0, first) // late, and again
	g.Granted(3, second)
	g.Granted(-1, second)
	serves(21 * s)
	g.Ask(30 * s)
	serves(21 * s)
	for range rounds {
		g.Ask(40 * s)
	}
	g.Granted(2, second+1) // too old to know when it was asked
	serves(21 * s)
	if !g.Grant(0) || !g.Grant(1) || g.Grant(3) || g.Grant(-1) {
		t.Error("grants to the wrong nodes")
	}
	if g.Expel(3, 1) || g.Expel(-1, 1) || g.Expel(0, 0) || !g.Expel(0, 7) || !g.Expel(0, 9) ||
		g.Grant(0) || !g.Grant(2) {
		t.Error("expels the wrong nodes")
	}
	serves(21 * s) // what it was granted, it has
	g.Expel(1, 8)
	serves(0)
	mute := NewServingLease(2, 3, 1, s)
	round := mute.Ask(10 * s)
	mute.Granted(1, round) // its lease does not count either
	if mute.Until() != 0 {
		t.Error("a node that is no voter serves by its own leave")
	}
	mute.Granted(0, round)
	if mute.Until() != 11*s {
		t.Errorf("a node that is no voter serves until %v", mute.Until())
	}
	if alone := NewServingLease(0, 1, 1, s); alone.Until() != rdma.Forever {
		t.Error("the only node does not serve")
	}
}

// TestExpelWait measures a lease with the fastest and the slowest clock.
func TestExpelWait(t *testing.T) {
	for _, lease := range []time.Duration{time.Millisecond, nodeLease, MaxLease} {
		slow, fast := float64(lease)/(1-1./16), float64(ExpelWait(lease))/(1+1./16)
		if fast <= slow || ExpelWait(lease) > lease+lease/6 {
			t.Errorf("a lease of %v lasts %v, and the wait %v", lease, time.Duration(slow), time.Duration(fast))
		}
	}
}
