package membership_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
)

// pool is a store, and the processes that use it. Their clocks are as far apart as their numbers
// say.
type pool struct {
	membership.Store
	t         testing.TB
	now       time.Duration
	revoked   []rdma.Client
	processes int
	// swap, unless nil, stands in for the next Swap of another record than the configuration, which
	// each tenure claims.
	swap func(key string, version uint64, value []byte) (bool, error)
	load error // of every Load
	// revoking, unless nil, happens in the midst of the next revocation.
	revoking func()
}

var errLost = fmt.Errorf("no answer: %w", membership.ErrUnreachable)

func newPool(t testing.TB) *pool { return &pool{Store: membership.Memory(), t: t} }

func (p *pool) Load(key string) ([]byte, uint64, error) {
	if p.load != nil {
		return nil, 0, p.load
	}
	return p.Store.Load(key)
}

func (p *pool) Swap(key string, version uint64, value []byte) (bool, error) {
	if swap := p.swap; swap != nil && key != "config" {
		p.swap = nil
		return swap(key, version, value)
	}
	return p.Store.Swap(key, version, value)
}

// loseRequest and loseAnswer make the next Swap one of unknown outcome: it did not happen, or it
// did.
func (p *pool) loseRequest() {
	p.swap = func(string, uint64, []byte) (bool, error) { return false, errLost }
}

func (p *pool) loseAnswer() {
	p.swap = func(key string, version uint64, value []byte) (bool, error) {
		if ok, err := p.Store.Swap(key, version, value); !ok || err != nil {
			p.t.Errorf("swap %s: %v, %v", key, ok, err)
		}
		return false, errLost
	}
}

func (p *pool) process(clients int) *membership.Registry {
	p.processes++
	ahead := time.Duration(p.processes) * time.Hour
	return membership.New(p, membership.Options{
		Nodes: 3, Clients: clients, Process: fmt.Sprint("process", p.processes),
		Machine: "here", PID: 100 + p.processes, Now: func() time.Duration { return p.now + ahead },
		Revoke: func(c rdma.Client) error {
			p.revoked = append(p.revoked, c)
			if f := p.revoking; f != nil {
				p.revoking = nil
				f()
			}
			return nil
		},
	})
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestView(t *testing.T) {
	p := newPool(t)
	a, b := p.process(4), p.process(4)
	view := func(want rdma.View, down ...bool) {
		t.Helper()
		v, d, err := b.View()
		if err != nil || v.Epoch != want.Epoch || v.Busy != want.Busy || !slices.Equal(v.Members, want.Members) ||
			!slices.Equal(d, down) {
			t.Fatalf("the view is %+v, %v (%v), want %+v, %v", v, d, err, want, down)
		}
	}
	advance := func(from, to rdma.State, want bool, refused error) {
		t.Helper()
		if ok, err := a.Advance(from, to); ok != want || !errors.Is(err, refused) {
			t.Fatalf("%+v becomes %+v: %v, %v", from, to, ok, err)
		}
	}
	member := func(epoch uint64, node int, from, to rdma.Member, want bool, refused error) {
		t.Helper()
		if ok, err := a.SetMember(epoch, node, from, to); ok != want || !errors.Is(err, refused) {
			t.Fatalf("member %d becomes %+v: %v, %v", node, to, ok, err)
		}
	}
	free, gone := rdma.Member{}, rdma.Member{Gone: true}
	view(rdma.View{Members: make([]rdma.Member, 3)}, false, false, false)
	member(0, 1, free, gone, false, nil)
	for _, epoch := range []uint64{0, 1} {
		if err := a.SetDown(epoch, 1); !errors.Is(err, rdma.ErrStale) {
			t.Fatalf("down in an idle view: %v", err)
		}
	}
	busy, idle := rdma.State{Epoch: 1, Busy: true}, rdma.State{Epoch: 1}
	advance(rdma.State{}, busy, true, nil)
	advance(rdma.State{}, busy, false, nil)
	advance(busy, rdma.State{Epoch: 1, Busy: true}, false, rdma.ErrAccess)
	advance(busy, rdma.State{}, false, rdma.ErrAccess)
	member(2, 1, free, gone, false, nil)
	member(1, 3, free, gone, false, rdma.ErrAccess)
	member(1, -1, free, gone, false, rdma.ErrAccess)
	member(1, 1, gone, rdma.Member{Gone: true, Since: 1}, false, nil)
	spare := rdma.Member{Replaces: 2, Since: 1}
	member(1, 2, free, spare, true, nil)
	member(1, 2, free, spare, false, nil)
	member(1, 2, spare, free, false, rdma.ErrAccess)
	if err := b.SetDown(0, 1); !errors.Is(err, rdma.ErrStale) {
		t.Fatalf("down in an epoch that is over: %v", err)
	}
	for _, node := range []int{-1, 3} {
		if err := b.SetDown(1, node); !errors.Is(err, rdma.ErrAccess) {
			t.Fatalf("node %d is down: %v", node, err)
		}
	}
	for range 2 {
		if err := b.SetDown(1, 1); err != nil {
			t.Fatal(err)
		}
		view(rdma.View{Epoch: 1, Busy: true, Members: []rdma.Member{{}, {}, spare}}, false, true, false)
	}
	advance(busy, idle, true, nil)
	if err := b.SetDown(1, 1); !errors.Is(err, rdma.ErrStale) {
		t.Fatalf("down again, in an idle view: %v", err)
	}
	view(rdma.View{Epoch: 1, Members: []rdma.Member{{}, {}, spare}}, false, true, false)
}

// TestViewOfUnknownOutcome loses the answers of changes.
func TestViewOfUnknownOutcome(t *testing.T) {
	p := newPool(t)
	b := p.process(4)
	p.loseRequest()
	if ok, err := b.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); ok ||
		!errors.Is(err, membership.ErrUnreachable) {
		t.Fatal(ok, err)
	}
	p.loseAnswer()
	if ok, err := b.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); ok ||
		!errors.Is(err, membership.ErrUnreachable) {
		t.Fatal(ok, err)
	}
	p.loseAnswer()
	if err := b.SetDown(1, 2); err != nil {
		t.Fatal(err)
	}
	if v, down, err := b.View(); err != nil || v.Epoch != 1 || !v.Busy ||
		!slices.Equal(down, []bool{false, false, true}) {
		t.Fatal(v, down, err)
	}
	p.load = errLost
	if _, _, err := b.View(); !errors.Is(err, membership.ErrUnreachable) ||
		!strings.Contains(err.Error(), "view of the pool") {
		t.Fatal(err)
	}
}

const lease = 70 * time.Millisecond

// become makes c master, or fails.
func become(t testing.TB, b *membership.Registry, c rdma.Client) rdma.Role {
	t.Helper()
	r, ok, err := b.TryMaster(c.ID, lease)
	if !ok || err != nil || r.Owner != c.ID {
		t.Fatalf("client %d is not master: %+v, %v, %v", c.ID, r, ok, err)
	}
	return r
}

// refused has c find another master.
func refused(t testing.TB, b *membership.Registry, c rdma.Client, owner rdma.ClientID) rdma.Role {
	t.Helper()
	r, ok, err := b.TryMaster(c.ID, lease)
	if ok || err != nil || r.Owner != owner {
		t.Fatalf("client %d finds %+v, %v, %v; want client %d master", c.ID, r, ok, err, owner)
	}
	return r
}

func TestMasterOfOneProcess(t *testing.T) {
	p := newPool(t)
	b := p.process(4)
	one, two := must[rdma.Client](t)(b.Claim("one")), must[rdma.Client](t)(b.Claim("two"))
	first := become(t, b, one)
	if r := refused(t, b, two, one.ID); r != first {
		t.Errorf("%+v, want %+v", r, first)
	}
	refused(t, b, one, one.ID)
	p.now += lease / 2
	longer, ok, err := b.Renew(first, lease)
	if !ok || err != nil || longer.Until != first.Until+lease/2 || longer.Epoch != first.Epoch {
		t.Fatalf("%+v, %v, %v", longer, ok, err)
	}
	b.Resign(first) // it is not that one any more
	refused(t, b, two, one.ID)
	b.Resign(longer)
	if _, _, ok, err := b.Master(); ok || err != nil {
		t.Fatal(ok, err)
	}
	second := become(t, b, two)
	if second.Epoch != first.Epoch+1 || len(p.revoked) > 0 {
		t.Errorf("%+v follows %+v, revoked %v", second, first, p.revoked)
	}
	if r, ok, err := b.Renew(longer, lease); ok || err != nil || r != second {
		t.Errorf("a tenure that was ended is prolonged: %+v, %v, %v", r, ok, err)
	}
	b.Resign(longer)
	refused(t, b, one, two.ID)
	if r, left, ok, err := b.Master(); r != second || left != lease || !ok || err != nil {
		t.Error(r, left, ok, err)
	}
	p.now += lease // the same process knows the moment
	if r, ok, err := b.Renew(second, lease); ok || err != nil {
		t.Errorf("a tenure that ran out is prolonged: %+v, %v, %v", r, ok, err)
	}
	if third := become(t, b, two); third.Epoch != second.Epoch+1 || len(p.revoked) > 0 {
		t.Errorf("%+v follows %+v, revoked %v", third, second, p.revoked)
	}
	p.now += lease
	become(t, b, one)
	if len(p.revoked) != 1 || p.revoked[0].ID != two.ID || p.revoked[0].Life != two.Life {
		t.Errorf("revoked %v", p.revoked)
	}
	if err := b.Release(one); err != nil {
		t.Fatal(err)
	}
	become(t, b, two)
	if len(p.revoked) != 1 {
		t.Errorf("a master that left in order was revoked: %v", p.revoked)
	}
}

func TestMasterOfAnotherProcess(t *testing.T) {
	p := newPool(t)
	a, b := p.process(4), p.process(4)
	one, two := must[rdma.Client](t)(a.Claim("one")), must[rdma.Client](t)(b.Claim("two"))
	role := become(t, a, one)
	p.now += lease / 2
	patience := membership.ExpelWait(lease)
	until := refused(t, b, two, one.ID).Until
	p.now += lease / 2
	role, ok, err := a.Renew(role, lease)
	if ok || err != nil {
		t.Fatalf("prolonged at its very end: %+v, %v", role, err)
	}
	if r := refused(t, b, two, one.ID); r.Until != until {
		t.Fatalf("until %v, and then %v, of a record that did not change", until, r.Until)
	}
	role = become(t, a, one)
	began := refused(t, b, two, one.ID)
	p.now += patience - 1
	if r, left, ok, err := b.Master(); r != began || left != 1 || !ok || err != nil {
		t.Fatal(r, left, ok, err)
	}
	refused(t, b, two, one.ID)
	p.now++
	if next := become(t, b, two); next.Epoch != role.Epoch+1 || len(p.revoked) != 1 || p.revoked[0].ID != one.ID {
		t.Fatalf("%+v follows %+v, revoked %v", next, role, p.revoked)
	}
	if r, ok, err := a.Renew(role, lease); ok || err != nil || r.Owner != two.ID {
		t.Fatalf("%+v, %v, %v", r, ok, err)
	}
	p.revoked = nil
	if err := b.MarkFenced(two); err != nil {
		t.Fatal(err)
	}
	refused(t, a, one, two.ID) // being fenced off is not yet the end of it
	p.loseRequest()            // of the end of its tenure
	p.now += time.Millisecond
	if err := b.Release(two); err != nil {
		t.Fatal(err)
	}
	become(t, a, one)
}

// TestMasterThatClosed has the end of a tenure get lost: that its owner let go of its identity ends
// it, too.
func TestMasterThatClosed(t *testing.T) {
	p := newPool(t)
	a, b := p.process(4), p.process(4)
	one, two := must[rdma.Client](t)(a.Claim("one")), must[rdma.Client](t)(b.Claim("two"))
	// The Swap by which it becomes master arrives late.
	var late func()
	p.swap = func(key string, version uint64, value []byte) (bool, error) {
		late = func() { p.Store.Swap(key, version, value) }
		return false, errLost
	}
	if _, ok, err := a.TryMaster(one.ID, lease); ok || !errors.Is(err, membership.ErrUnreachable) {
		t.Fatal(ok, err)
	}
	if err := a.Release(one); err != nil {
		t.Fatal(err)
	}
	late()
	become(t, b, two)
	if len(p.revoked) != 1 || p.revoked[0].ID != one.ID {
		t.Errorf("revoked %v", p.revoked)
	}
}

// TestLateClaim has a candidate be so slow that two other tenures begin before it claims the
// configuration: it takes nothing from the later one, and gives nothing back to the earlier one.
func TestLateClaim(t *testing.T) {
	p := newPool(t)
	a, b, c := p.process(4), p.process(4), p.process(4)
	one, two := must[rdma.Client](t)(a.Claim("one")), must[rdma.Client](t)(b.Claim("two"))
	three := must[rdma.Client](t)(c.Claim("three"))
	first := become(t, a, one)
	refused(t, b, two, one.ID)
	refused(t, c, three, one.ID)
	p.now += membership.ExpelWait(lease)
	var second, third rdma.Role
	p.revoking = func() {
		second = become(t, c, three)
		c.Resign(second)
		third = become(t, c, three)
	}
	if r, ok, err := b.TryMaster(two.ID, lease); ok || err != nil || r.Owner != three.ID {
		t.Fatalf("the slow candidate: %+v, %v, %v", r, ok, err)
	}
	for _, r := range []rdma.Role{{}, first, second} {
		if ok, err := c.SwapConfig(r, 0, nil); ok || !errors.Is(err, rdma.ErrStale) {
			t.Errorf("the master of epoch %d, which is over, replaces the configuration: %v, %v", r.Epoch, ok, err)
		}
	}
	if ok, err := c.SwapConfig(third, 0, []byte("third")); !ok || err != nil {
		t.Errorf("the master of epoch %d: %v, %v", third.Epoch, ok, err)
	}
}

func TestMasterOfUnknownOutcome(t *testing.T) {
	p := newPool(t)
	b := p.process(4)
	c := must[rdma.Client](t)(b.Claim("c"))
	p.loseAnswer()
	role := become(t, b, c)
	p.loseAnswer()
	if r, ok, err := b.Renew(role, lease); ok || !errors.Is(err, membership.ErrUnreachable) {
		t.Fatal(r, ok, err)
	}
	p.now += lease / 2
	longer, ok, err := b.Renew(role, lease)
	if !ok || err != nil || longer.Epoch != role.Epoch {
		t.Fatal(longer, ok, err)
	}
	p.now++
	p.loseAnswer()
	if _, ok, err := b.Renew(longer, lease); ok || err == nil {
		t.Fatal(ok, err)
	}
	b.Resign(longer)
	if _, _, ok, err := b.Master(); ok || err != nil {
		t.Errorf("its owner does not know that it was prolonged, and cannot resign: %v", err)
	}
	p.swap = func(key string, version uint64, value []byte) (bool, error) {
		p.Store.Swap(key, version, value)
		p.load = errLost
		return false, errLost
	}
	if _, ok, err := b.TryMaster(c.ID, lease); ok || !errors.Is(err, membership.ErrUnreachable) {
		t.Fatal(ok, err)
	}
	p.load = nil
	if r := become(t, b, c); r.Epoch != longer.Epoch+1 {
		t.Errorf("a tenure of unknown outcome is not adopted: %+v", r)
	}
	refused(t, b, c, c.ID)
}

// TestMasterTooSlow has a store take longer than the lease: there is no master, and no client is
// fenced off for it.
func TestMasterTooSlow(t *testing.T) {
	p := newPool(t)
	a, b := p.process(4), p.process(4)
	one, two := must[rdma.Client](t)(a.Claim("one")), must[rdma.Client](t)(b.Claim("two"))
	p.swap = func(key string, version uint64, value []byte) (bool, error) {
		p.now += lease
		return p.Store.Swap(key, version, value)
	}
	if r, ok, err := a.TryMaster(one.ID, lease); ok || err != nil {
		t.Fatal(r, ok, err)
	}
	become(t, b, two)
	if len(p.revoked) > 0 {
		t.Errorf("revoked %v", p.revoked)
	}
}

func TestMasterRefuses(t *testing.T) {
	b := newPool(t).process(4)
	for owner, l := range map[rdma.ClientID]time.Duration{0: lease, 5: lease, 1: membership.MaxLease + 1, 2: 0} {
		if _, ok, err := b.TryMaster(owner, l); ok || !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("client %d for %v: %v, %v", owner, l, ok, err)
		}
		if _, ok, err := b.Renew(rdma.Role{Owner: owner}, l); ok || !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("client %d for %v more: %v, %v", owner, l, ok, err)
		}
	}
	if r, ok, err := b.TryMaster(3, lease); !ok || err != nil || r.Epoch != 1 {
		t.Errorf("an identity without a holder: %+v, %v, %v", r, ok, err)
	}
}

// TestRevokeFails keeps the role from a candidate that cannot fence off the last master.
func TestRevokeFails(t *testing.T) {
	p := newPool(t)
	a := p.process(4)
	one := must[rdma.Client](t)(a.Claim("one"))
	b := membership.New(p, membership.Options{Nodes: 3, Clients: 4, Process: "b",
		Now:    func() time.Duration { return p.now },
		Revoke: func(rdma.Client) error { return rdma.ErrTimeout }})
	two := must[rdma.Client](t)(b.Claim("two"))
	become(t, a, one)
	refused(t, b, two, one.ID)
	p.now += time.Second
	if _, ok, err := b.TryMaster(two.ID, lease); ok || !errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("%v, %v", ok, err)
	}
	if r, _, _, err := a.Master(); err != nil || r.Owner != one.ID {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRevokeOfNodesThatAreDown: a master that died together with a memory node has a successor
// nevertheless, and every later master knows which epoch the view has to reach first.
func TestRevokeOfNodesThatAreDown(t *testing.T) {
	p := newPool(t)
	a := p.process(4)
	one := must[rdma.Client](t)(a.Claim("one"))
	down := fmt.Errorf("revoke: node 1: %w", rdma.ErrNodeDown)
	fenced := down
	b := membership.New(p, membership.Options{Nodes: 3, Clients: 4, Process: "b",
		Now:    func() time.Duration { return p.now },
		Revoke: func(rdma.Client) error { return fenced }})
	two := must[rdma.Client](t)(b.Claim("two"))
	if ok, err := a.Advance(rdma.State{}, rdma.State{Epoch: 4}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	become(t, a, one)
	refused(t, b, two, one.ID)
	p.now += time.Second
	fenced = fmt.Errorf("%w: %w", membership.ErrUnreachable, down) // then it is unknown whether the registry has it
	if _, ok, err := b.TryMaster(two.ID, lease); ok || !errors.Is(err, membership.ErrUnreachable) {
		t.Errorf("%v, %v", ok, err)
	}
	fenced = down
	r, ok, err := b.TryMaster(two.ID, lease)
	if !ok || err != nil || r.FenceEpoch != 5 {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
	if r, ok, err = b.Renew(r, lease); !ok || err != nil || r.FenceEpoch != 5 {
		t.Errorf("prolonged: %+v, %v, %v", r, ok, err)
	}
	b.Resign(r)
	three := must[rdma.Client](t)(a.Claim("three"))
	if r, ok, err := a.TryMaster(three.ID, lease); !ok || err != nil || r.FenceEpoch != 5 {
		t.Errorf("the next one: %+v, %v, %v", r, ok, err)
	}
}
