package membership_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
)

func listed(t testing.TB, b *membership.Registry, want ...membership.Holder) {
	t.Helper()
	got, err := b.Clients()
	slices.SortFunc(want, func(a, b membership.Holder) int { return int(a.ID) - int(b.ID) })
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("clients are\n%+v (%v), want\n%+v", got, err, want)
	}
}

func held(yes bool) func(membership.Holder) (bool, error) {
	return func(membership.Holder) (bool, error) { return yes, nil }
}

func TestClients(t *testing.T) {
	p := newPool(t)
	a, b := p.process(2), p.process(2)
	one, two := must[rdma.Client](t)(a.Claim("one")), must[rdma.Client](t)(b.Claim(strings.Repeat("é", 100)))
	if one.ID == two.ID || one.Life != 1 || one.PID != 101 || len(two.Name) != 64 {
		t.Fatalf("%+v, %+v", one, two)
	}
	h1 := membership.Holder{Client: one, Process: "process1", Machine: "here"}
	h2 := membership.Holder{Client: two, Process: "process2", Machine: "here"}
	listed(t, a, h1, h2)
	if err := b.MarkFenced(one); err != nil {
		t.Fatal(err)
	}
	_, err := a.Claim("three")
	if !errors.Is(err, rdma.ErrFull) || !strings.Contains(err.Error(), "1 of 2 clients are attached") ||
		!strings.Contains(err.Error(), "1 were fenced off") {
		t.Fatal(err)
	}
	h1.Fenced = true
	listed(t, a, h1, h2)
	if err := b.Forget(one, held(true)); !errors.Is(err, rdma.ErrHeld) {
		t.Fatalf("one that is held is forgotten: %v", err)
	}
	asked := errors.New("asked")
	if err := b.Forget(one, func(h membership.Holder) (bool, error) { return h != h1, asked }); !errors.Is(err, asked) {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(a.Release(one), a.MarkFenced(one)); err != nil {
			t.Fatal(err)
		}
		h1.Closed = true
		listed(t, a, h1, h2)
	}
	for range 2 {
		if err := b.Forget(one, held(true)); err != nil { // its process is attached, but it has let go
			t.Fatal(err)
		}
		listed(t, a, h2)
	}
	next := must[rdma.Client](t)(b.Claim("next"))
	if next.ID != one.ID || next.Life != 2 {
		t.Fatalf("%+v follows %+v", next, one)
	}
	// Nothing that is done to the one before harms it.
	if err := errors.Join(a.MarkFenced(one), a.Release(one), a.Forget(one, held(false))); err != nil {
		t.Fatal(err)
	}
	hn := membership.Holder{Client: next, Process: "process2", Machine: "here"}
	listed(t, b, hn, h2)
	fenced := func(c rdma.Client, want bool) {
		t.Helper()
		_, _, clients, err := a.Look()
		if got := membership.Fenced(c, clients); got != want || err != nil {
			t.Errorf("%+v is fenced off: %v, %v", c, got, err)
		}
	}
	fenced(one, true)
	fenced(next, false)
	fenced(two, false)
	if err := a.MarkFenced(two); err != nil {
		t.Fatal(err)
	}
	fenced(two, true)
	if err := a.Forget(two, held(false)); err != nil { // its process has died
		t.Fatal(err)
	}
	fenced(two, true) // one that was forgotten
	if err := b.Release(next); err != nil {
		t.Fatal(err)
	}
	listed(t, a)
	for _, c := range []rdma.Client{{}, {ID: 3}} {
		for _, err := range []error{a.MarkFenced(c), a.Release(c), a.Forget(c, held(false))} {
			if !errors.Is(err, rdma.ErrAccess) {
				t.Errorf("client %d: %v", c.ID, err)
			}
		}
	}
}

// TestClaimOfUnknownOutcome loses requests and answers of claims: no identity is handed out twice,
// or left in use.
func TestClaimOfUnknownOutcome(t *testing.T) {
	p := newPool(t)
	b := p.process(1)
	for i, lose := range []func(){p.loseRequest, p.loseAnswer} {
		lose()
		c := must[rdma.Client](t)(b.Claim("c"))
		if c.Life != uint64(i+1) {
			t.Errorf("%+v", c)
		}
		listed(t, b, membership.Holder{Client: c, Process: "process1", Machine: "here"})
		lose()
		if err := b.Release(c); err != nil {
			t.Fatal(err)
		}
		listed(t, b)
	}
	var late func()
	for name, how := range map[string]struct{ now, later bool }{"lost": {}, "done": {now: true},
		"late": {later: true}} {
		p.swap = func(key string, version uint64, value []byte) (bool, error) {
			if how.now {
				p.Store.Swap(key, version, value)
			}
			late = func() { p.Store.Swap(key, version, value) }
			p.swap = p.lostAgain(2)
			return false, errLost
		}
		if _, err := b.Claim(name); !errors.Is(err, membership.ErrUnreachable) {
			t.Fatal(name, err)
		}
		if err := b.Settle(); err != nil {
			t.Fatal(name, err)
		}
		if how.later {
			late()
		}
		listed(t, b)
		if err := b.Release(must[rdma.Client](t)(b.Claim(name))); err != nil {
			t.Fatal(name, err)
		}
	}
}

// lostAgain loses so many Swaps more.
func (p *pool) lostAgain(n int) func(string, uint64, []byte) (bool, error) {
	return func(string, uint64, []byte) (bool, error) {
		if n > 1 {
			p.swap = p.lostAgain(n - 1)
		}
		return false, errLost
	}
}

// TestSettleLater keeps an unresolved claim until the store answers, and its identity from all
// others.
func TestSettleLater(t *testing.T) {
	p := newPool(t)
	b := p.process(1)
	p.swap = p.lostAgain(3)
	if _, err := b.Claim("c"); !errors.Is(err, membership.ErrUnreachable) {
		t.Fatal(err)
	}
	p.load = errLost
	if err := b.Settle(); !errors.Is(err, membership.ErrUnreachable) {
		t.Fatal(err)
	}
	if _, err := b.Claim("c"); !errors.Is(err, rdma.ErrFull) {
		t.Fatal(err)
	}
	p.load = nil
	must[rdma.Client](t)(b.Claim("c"))
}

// TestClaimsAtOnce has workers of several processes claim and release: no two have an identity at a
// time, its lives grow, and no worker is sent away while there are enough.
func TestClaimsAtOnce(t *testing.T) {
	const processes, workers, turns = 3, 4, 40
	p := newPool(t)
	p.Store = membership.Memory()
	var mu sync.Mutex
	holds := map[rdma.ClientID]string{}
	lives := map[rdma.ClientID]uint64{}
	var wg sync.WaitGroup
	for range processes {
		b := membership.New(p.Store,
			membership.Options{Nodes: 1, Clients: processes * workers, Process: fmt.Sprint(p.processes)})
		p.processes++
		for w := range workers {
			wg.Go(func() {
				for range turns {
					c, err := b.Claim(fmt.Sprint(w))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if holds[c.ID] != "" || c.Life <= lives[c.ID] {
						t.Errorf("%+v, and %q has it in life %d", c, holds[c.ID], lives[c.ID])
					}
					holds[c.ID], lives[c.ID] = c.Name, c.Life
					mu.Unlock()
					mu.Lock()
					holds[c.ID] = ""
					mu.Unlock()
					if err := b.Release(c); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	listed(t, membership.New(p.Store, membership.Options{Nodes: 1, Clients: processes * workers}))
}

// TestManyClients fills a large pool.
func TestManyClients(t *testing.T) {
	p := newPool(t)
	b := p.process(200)
	seen := map[rdma.ClientID]bool{}
	for range 200 {
		seen[must[rdma.Client](t)(b.Claim("c")).ID] = true
	}
	if _, err := b.Claim("c"); len(seen) != 200 || !errors.Is(err, rdma.ErrFull) {
		t.Errorf("%d identities, then %v", len(seen), err)
	}
}
