package rdmatest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// testTime checks that time never goes back, and that sleeping takes it.
func testTime(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		last := ep.Now()
		for _, d := range []time.Duration{0, 1, time.Microsecond, 100 * time.Microsecond, 2 * time.Millisecond} {
			ep.Sleep(d)
			now := ep.Now()
			if now < last+d {
				t.Errorf("slept %v, but it is %v after %v", d, now, last)
			}
			if _, err := load(ep, rdma.At(0, 0)); err != nil || ep.Now() < now {
				t.Errorf("after a READ (%v) it is %v, before it was %v", err, ep.Now(), now)
			}
			last = ep.Now()
		}
	})
}

// testRand checks that workers do not draw alike.
func testRand(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	var draws [3][4]uint64
	var fs []func(rdma.Endpoint)
	for w := range draws {
		fs = append(fs, func(ep rdma.Endpoint) {
			for i := range draws[w] {
				draws[w][i] = ep.Rand().Uint64()
			}
		})
	}
	h.Parallel(t, f, fs...)
	for i := range draws {
		if draws[i][0] == draws[i][1] || draws[i] == draws[(i+1)%3] {
			t.Errorf("workers draw alike: %x", draws)
		}
	}
}

// testTasks starts tasks: each has an endpoint of its own, and Close ends and joins those that go
// on for ever.
func testTasks(t testing.TB, h Harness) {
	const tasks = 4
	f := h.New(t, 1, poolBytes, nil)
	var ended [tasks]bool
	var why [tasks]error
	one(t, h, f, func(ep rdma.Endpoint) {
		for i := range tasks {
			err := ep.Go("task", func(own rdma.Endpoint) {
				defer func() { ended[i] = true }()
				if own.Client() == ep.Client() {
					t.Error("a task has its parent's identity")
				}
				for why[i] == nil {
					_, why[i] = fetchAdd(own, rdma.At(0, 8), 1)
					own.Sleep(10 * time.Microsecond)
				}
			})
			if err != nil {
				t.Error(err)
			}
		}
		v, err := uint64(0), error(nil)
		for until := ep.Now() + patience; v < 20 && err == nil && ep.Now() < until; {
			v, err = load(ep, rdma.At(0, 8))
		}
		if v < 20 || err != nil {
			t.Errorf("tasks do not run: %d verbs, %v", v, err)
		}
	})
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	for i := range tasks {
		if !ended[i] || !errors.Is(why[i], rdma.ErrClosed) {
			t.Errorf("Close returned; task %d has ended: %v, its last verb: %v", i, ended[i], why[i])
		}
	}
}

// testIdentities checks that identities differ and are listed as long as they are held.
func testIdentities(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	var held []rdma.Endpoint
	seen := map[rdma.ClientID]bool{}
	for _, name := range []string{"a", "b", "c", "d"} {
		ep, err := f.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if id := ep.Client(); id == 0 || seen[id] {
			t.Errorf("%q got identity %d; %v are held", name, id, seen)
		}
		seen[ep.Client()] = true
		held = append(held, ep)
	}
	if err := held[1].Close(); err != nil {
		t.Error(err)
	}
	var names []string
	for _, c := range f.Clients() {
		if !c.Alive || !seen[c.ID] {
			t.Errorf("listed: %+v", c)
		}
		names = append(names, c.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"a", "c", "d"}) {
		t.Errorf("clients are %v after b has closed", names)
	}
	again, err := f.Open("e")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 2, 3} {
		if again.Client() == held[i].Client() {
			t.Errorf("identity %d was handed out twice", again.Client())
		}
		held[i].Close()
	}
	again.Close()
	if n := len(f.Clients()); n != 0 {
		t.Errorf("%d clients are listed after all have closed", n)
	}
}

// testUseAfterClose uses what was closed.
func testUseAfterClose(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, serve)
	one(t, h, f, func(ep rdma.Endpoint) {
		own, err := f.Open("own")
		if err != nil {
			t.Error(err)
			return
		}
		if err := own.Close(); err != nil {
			t.Error(err)
		}
		if err := write(own, rdma.At(0, 0), []byte{1}); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("post on a closed endpoint: %v", err)
		}
		if err := own.Call(0, &rdma.Request{Proc: echo}, patience); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("call on a closed endpoint: %v", err)
		}
		if v, err := load(ep, rdma.At(0, 0)); err != nil || v != 0 {
			t.Errorf("the word is %d (%v)", v, err)
		}
	})
	ep, err := f.Open("left open")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Open("late"); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("open on a closed fabric: %v", err)
	}
	b := ep.Batch()
	b.FetchAdd(rdma.At(0, 0), 1)
	if err := ep.Post(b); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("post on a closed fabric: %v", err)
	}
	if err := ep.Go("task", func(rdma.Endpoint) { t.Error("a task was started") }); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("task on a closed fabric: %v", err)
	}
	ep.Close()
}
