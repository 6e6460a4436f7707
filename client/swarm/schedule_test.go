package swarm

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestWrongMaximum is Figure 2: a READ finds a tuple that was stale when it was written, since
// one of its replicas answered before the higher tuple was there. Only a second READ shows that.
func TestWrongMaximum(t *testing.T) {
	l, err := NewLayout(Shape{Replicas: 3, Words: 3, Locks: 3, Writers: 3, MaxValue: 8})
	must(t, err)
	a := newArena(l, 3, 1, 100)
	s := sim.New(sim.Options{Nodes: 3, Memory: a.memory(),
		MinLatency: time.Microsecond, MaxLatency: time.Microsecond, Faults: sim.Faults{
			{Kind: sim.FlyFault, Client: "reader", Verb: 2, For: 60 * time.Microsecond}, // its READ of node 1
			// The first step ends after that of the reader.
			{Kind: sim.LateFault, Client: "stale", Verb: 3 + 1, For: 150 * time.Microsecond},
		}})
	defer s.Close()
	read := map[string]string{}
	client := func(name string, writer int, at time.Duration, clock time.Duration, f func(c *registers, k *Register)) {
		s.Go(name, func(ep rdma.Endpoint) {
			c, err := a.open(ep, Options{Writer: writer, Clock: &still{clock}, Slow: time.Second})
			must(t, err)
			ep.Sleep(at)
			f(c, &c.keys[0])
		})
	}
	client("reader", 0, 10*time.Microsecond, 0, func(c *registers, k *Register) {
		v, err := c.Read(k)
		read["reader"] = fmt.Sprint(string(v), err)
	})
	client("fresh", 1, 20*time.Microsecond, time.Second, func(c *registers, k *Register) {
		c.quorum.MarkSlow(1) // it writes to nodes 0 and 2
		must(t, c.Write(k, []byte("fresh")))
	})
	client("stale", 2, 40*time.Microsecond, time.Millisecond, func(c *registers, k *Register) {
		k.warm = true // it knows the words, and not what is in them
		must(t, c.Write(k, []byte("stale")))
	})
	client("last", 0, 500*time.Microsecond, 0, func(c *registers, k *Register) {
		v, err := c.Read(k)
		read["last"] = fmt.Sprint(string(v), err)
	})
	must(t, s.Run())
	if read["reader"] != "fresh<nil>" || read["last"] != "stale<nil>" {
		t.Errorf("a stale guess is returned: %v", read)
	}
}

// TestLockedOut: a reader that read a tuple twice does not return it once its writer has locked it
// out, to write it again.
func TestLockedOut(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 3, Words: 3, Locks: 3, Writers: 3, MaxValue: 8}, 3, 1, 100)
	x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{Writer: 1})
	k := &x.keys[0]
	p := put{tuple: tuple{stamp: x.stamp(5, 0), value: []byte("first")}, from: x.all(), need: 2, expect: &k.own,
		read: true}
	must(t, x.put("test", k, &p))
	if _, done, err := y.try(&y.keys[0], time.Second); done || err != nil {
		t.Fatal(done, err)
	}
	tuple, err := y.read(&y.keys[0], time.Second)
	must(t, err)
	must(t, y.Write(&y.keys[0], []byte("second"))) // by another client than the reader's, for what it does to the words
	must(t, x.settle(k, p.stamp, y.stamp(y.keys[0].last, 1), []byte("first")))
	if v, done, err := y.settled(&y.keys[0], &tuple, &tuple, time.Second); done || err != nil {
		t.Errorf("what is written again is returned: %q, %v", v, err)
	}
	if v, err := y.Read(&y.keys[0]); err != nil || string(v) != "first" {
		t.Errorf("got %q, %v", v, err)
	}
}

// TestNoTimestampToWriteAgain: a write is uncertain if a majority has its stale guess, and its
// writer can use no other timestamp now. Readers return the guess when they then meet a later
// write of the same client.
func TestNoTimestampToWriteAgain(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 3, Words: 2, Locks: 2, Writers: 2, MaxValue: 8}, 3, 1, 100)
	y, uses := worker(t, f, a, Options{Writer: 1, Clock: &still{time.Second}}), 0
	x := worker(t, f, a, Options{Clock: &still{0}, Use: func(uint64) error {
		if uses++; uses > 1 {
			return rdma.ErrTimeout
		}
		return nil
	}})
	must(t, y.Write(&y.keys[0], []byte("high")))
	x.keys[0].warm = true // it knows the words, and not what is in them
	err := x.Write(&x.keys[0], []byte("stale"))
	wantError(t, err, rdma.ErrTimeout)
	wantError(t, err, client.ErrUncertain)
	wantError(t, x.Write(&x.keys[0], []byte("next")), rdma.ErrTimeout)
}

// TestKnownWordStays: a word that is known to be higher is not lowered.
func TestKnownWordStays(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 3, Words: 1, Locks: 2, Writers: 2, MaxValue: 8}, 3, 1, 100)
	x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{Writer: 1})
	must(t, y.Write(&y.keys[0], []byte("high")))
	k := &x.keys[0]
	_, _, err := x.look(k, false)
	must(t, err)
	p := put{tuple: tuple{stamp: x.stamp(1, 0), value: []byte("low")}, from: x.all(), need: 3, expect: &k.own}
	must(t, x.put("test", k, &p))
	if v, err := y.Read(&y.keys[0]); err != nil || string(v) != "high" {
		t.Errorf("a word fell to %q, %v", v, err)
	}
}

// TestTombstoneOfTheDead: a client that reports an object as deleted has brought the tombstone to a
// majority, though the deleter, and the only node that it reached, are dead.
func TestTombstoneOfTheDead(t *testing.T) {
	for _, op := range []string{"warm write", "cold write", "ABD's write", "read"} {
		f, a := pool(t, Shape{Replicas: 3, Words: 2, Locks: 2, Writers: 3, MaxValue: 8}, 3, 1, 100)
		x, y, abd := worker(t, f, a, Options{}), worker(t, f, a, Options{Writer: 1}),
			worker(t, f, a, Options{Writer: 2})
		must(t, x.Write(&x.keys[0], []byte("there")))
		b := y.ep.Batch()
		b.CompareSwap(y.wordAt(&y.keys[0], 0, 1), 0, uint64(tombstone))
		must(t, rdma.Do(y.ep, b, time.Second))
		b.Release()
		var err error
		switch op {
		case "warm write":
			err = x.Write(&x.keys[0], []byte("lost"))
		case "cold write":
			err = y.Write(&y.keys[0], []byte("lost"))
		case "ABD's write":
			err = abd.Write(&abd.keys[0], []byte("lost"))
		default:
			_, err = x.Read(&x.keys[0])
		}
		wantError(t, err, ErrGone)
		must(t, f.KillNode(0))
		z := worker(t, f, a, Options{Writer: 2})
		_, err = z.Read(&z.keys[0])
		wantError(t, err, ErrGone)
	}
}

// TestTwoDeadWriters: one writer wrote at a single node, which dies. Another met that tuple, and
// died where it may have locked its own. A reader finds the tuple of the second writer: if its
// lock fails, it must find a higher tuple, too.
func TestTwoDeadWriters(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 3, Words: 3, Locks: 3, Writers: 3, MaxValue: 8}, 3, 1, 100)
	x, y, z := worker(t, f, a, Options{}), worker(t, f, a, Options{Writer: 1}), worker(t, f, a, Options{Writer: 2})
	k, o := &x.keys[0], &y.keys[0]
	high := put{tuple: tuple{stamp: x.stamp(10, 0), value: []byte("high")}, from: quorum.Only(2), need: 1,
		expect: &k.own}
	must(t, x.put("test", k, &high))
	low := put{tuple: tuple{stamp: y.stamp(5, 1), value: []byte("low")}, from: quorum.Only(1) | quorum.Only(2),
		need: 2, expect: &o.own, read: true}
	must(t, y.put("test", o, &low))
	top, err := y.above(o, &low)
	must(t, err)
	if top > low.stamp {
		if locked, err := y.tryLock(o, low.stamp, writeMode); !locked || err != nil {
			t.Fatal(locked, err)
		}
	}
	must(t, f.KillNode(2))
	if v, err := z.Read(&z.keys[0]); err != nil || string(v) != "high" && top > low.stamp {
		t.Errorf("%q is returned: %v", v, err)
	}
}

// TestWriteBack: a majority has what a READ returns, though the writer died at its first replica.
func TestWriteBack(t *testing.T) {
	for _, flag := range []stamp{0, verified} {
		f, a := pool(t, Shape{Replicas: 5, Words: 2, Locks: 2, Writers: 2, MaxValue: 8}, 5, 1, 100)
		x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{Writer: 1})
		k := &x.keys[0]
		p := put{tuple: tuple{stamp: x.stamp(10, 0) | flag, value: []byte("value")}, from: quorum.Only(0), need: 1,
			expect: &k.own}
		must(t, x.put("test", k, &p))
		got, err := y.read(&y.keys[0], time.Second)
		must(t, err)
		b, holders := x.ep.Batch(), 0
		for r := range x.Replicas {
			b.Read(x.wordAt(k, r, 0), 8)
		}
		must(t, rdma.Do(x.ep, b, time.Second))
		for r := range x.Replicas {
			if w := Word(le.Uint64(b.Op(r).Buf)); stampOf(w, 0) == got.stamp {
				holders++
			}
		}
		b.Release()
		if got.stamp != p.stamp || string(got.value) != "value" || holders != 3 {
			t.Errorf("stamp %x with %q is returned, and %d of 5 replicas have it", got.stamp, got.value, holders)
		}
	}
}
