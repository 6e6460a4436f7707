package shm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
)

func TestMain(m *testing.M) {
	child.Main(func(args []string) error { return childMain(args[0], args[1]) })
	goleak.VerifyTestMain(m)
}

// childMain is the main of another process. It prints a line when it is at work and stops when its
// input ends.
func childMain(what, pool string) error {
	switch what {
	case "full":
		return full(pool)
	case "create":
		_, err := Create(pool, small, nil, func(f *Fabric) error {
			fmt.Println("formatting")
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
		return err
	}
	f, err := Open(pool, callAndHang)
	if err != nil {
		return err
	}
	defer f.Close()
	e, err := f.Open(what)
	if err != nil {
		return err
	}
	if role, ok := strings.CutPrefix(what, "role-"); ok {
		return errors.Join(rdmatest.Role(role)(f, e), e.Close())
	}
	switch what {
	case "open":
		return errors.New("opened")
	case "configure":
		return configure(f, e)
	case "count":
		return count(e, perChild)
	case "write":
		fmt.Println(e.Client())
		return writeUntilRevoked(e)
	case "step":
		fmt.Println(e.Client())
		return takeSteps(e)
	case "call":
		return errors.Join(e.Call(0, &rdma.Request{}, time.Second), e.Close())
	case "hold":
		fmt.Println(e.Client())
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case "truncated":
		return truncated(f, e.(*Endpoint), func() { _, _ = io.Copy(io.Discard, os.Stdin) })
	case "now":
		fmt.Println(int64(e.Now()))
		return e.Close()
	}
	return fmt.Errorf("no child %q", what)
}

// callAndHang is a procedure that goes on until the process's input ends, and then writes.
func callAndHang(m rdma.Memory, r *rdma.Request) error {
	fmt.Println(r.Client)
	_, err := io.Copy(io.Discard, os.Stdin)
	m.FetchAdd(0, 1)
	return err
}

const (
	perChild = 20_000
	counters = 4
)

// count adds to the first words of node 0 by FAA, and to the next ones by CAS.
func count(e rdma.Endpoint, n int) error {
	for i := range n {
		b := e.Batch()
		b.FetchAdd(rdma.At(0, uint64(i%counters)*8), 1)
		r := b.Read(rdma.At(0, uint64(counters+i%counters)*8), 8)
		if err := rdma.Do(e, b, time.Second); err != nil {
			return err
		}
		old := word(r.Buf)
		b.Release()
		for {
			b := e.Batch()
			op := b.CompareSwap(rdma.At(0, uint64(counters+i%counters)*8), old, old+1)
			if err := rdma.Do(e, b, time.Second); err != nil {
				return err
			}
			ok, found := op.Swapped(), op.Result
			b.Release()
			if ok {
				break
			}
			old = found
		}
	}
	return e.Close()
}

// configure replaces the configuration as often as it can, while it is master.
func configure(f *Fabric, e rdma.Endpoint) error {
	for said, until := false, e.Now()+time.Minute; e.Now() < until; {
		r, ok, err := f.TryMaster(e.Client(), 10*time.Second)
		if err != nil {
			return err
		}
		for ok && e.Now() < until {
			c, err := f.Config()
			if err != nil {
				return err
			}
			if _, err := f.SwapConfig(r, c.Version, configured(c.Version+1)); err != nil {
				return err
			}
			if !said {
				fmt.Println("configures")
				said = true
			}
		}
	}
	return errors.New("this master was not killed")
}

// TestKilledWhileItConfigures kills masters while they replace the configuration: what they leave
// is whole, and the next one goes on with it.
func TestKilledWhileItConfigures(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", Geometry{Nodes: 1, Memory: 4096, Clients: 8})
	last := uint64(0)
	for round := range 10 {
		p := child.Start(t, "configure", "p")
		p.Line(t)
		time.Sleep(time.Duration(round) * time.Millisecond)
		p.Kill()
		c, err := f.Config()
		if err != nil || c.Version <= last || !bytes.Equal(c.Data, configured(c.Version)) {
			t.Fatalf("round %d: version %d, behind %d, is %d bytes, %v", round, c.Version, last, len(c.Data), err)
		}
		last = c.Version
		for _, c := range f.Clients() {
			if err := errors.Join(f.RevokeLife(c), f.Forget(c)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// writeUntilRevoked writes rising numbers to a page of node 1.
func writeUntilRevoked(e rdma.Endpoint) error {
	for i, until := byte(1), e.Now()+time.Minute; e.Now() < until; i++ {
		b := e.Batch()
		p := b.Alloc(4096)
		for j := range p {
			p[j] = i
		}
		b.Write(rdma.At(1, 0), p)
		err := rdma.Do(e, b, time.Second)
		b.Release()
		if errors.Is(err, rdma.ErrRevoked) {
			fmt.Println("revoked")
			return e.Close()
		}
		if err != nil {
			return err
		}
	}
	return errors.New("this client was not fenced off")
}

// takeSteps adds to a word in each of its steps.
func takeSteps(e rdma.Endpoint) error {
	for until := e.Now() + time.Minute; e.Now() < until; {
		for i, step := range []rdma.Step{"one", "two", "three"} {
			b := e.Batch().As(step)
			b.FetchAdd(rdma.At(0, uint64(8*i)), 1)
			if err := rdma.Do(e, b, time.Second); err != nil {
				return err
			}
			b.Release()
		}
	}
	return errors.New("this client was not crashed")
}

// clientOf reads the identity that a child prints.
func clientOf(t testing.TB, p *child.Process) rdma.ClientID {
	t.Helper()
	var c rdma.ClientID
	if _, err := fmt.Sscan(p.Line(t), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSuiteOnFiles(t *testing.T) {
	inFolder(t)
	pools := 0
	h := harness(func(_ testing.TB, g Geometry, h rdma.Handler) (*Fabric, error) {
		pools++
		return Create(fmt.Sprint("suite", pools), g, h, nil)
	})
	h.Spawn = func(t testing.TB, f rdma.Fabric, role string, n int) {
		_, name, _ := strings.Cut(f.(*Fabric).name, ":")
		var all []*child.Process
		for range n {
			all = append(all, child.Start(t, "role-"+role, name))
		}
		for _, p := range all {
			p.End(t)
		}
	}
	rdmatest.Run(t, h)
}

func TestProcessesCountExactly(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", Geometry{Nodes: 1, Memory: 4096, Clients: 8})
	const children = 4
	var all []*child.Process
	for range children {
		all = append(all, child.Start(t, "count", "p"))
	}
	own := attachTo(t, f, "own")
	if err := count(own, perChild); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		p.End(t)
	}
	e := attachTo(t, f, "sum")
	b := e.Batch()
	defer b.Release()
	r := b.Read(rdma.At(0, 0), 2*counters*8)
	if err := rdma.Do(e, b, time.Second); err != nil {
		t.Fatal(err)
	}
	const want = (children + 1) * perChild / counters
	for i := range 2 * counters {
		if got := word(r.Buf[8*i:]); got != want {
			t.Errorf("word %d is %d, want %d", i, got, want)
		}
	}
}

func TestKilledProcessLeavesADeadClient(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", small)
	p := child.Start(t, "hold", "p")
	c := clientOf(t, p)
	if all := f.Clients(); len(all) != 1 || !all[0].Alive || all[0].ID != c || all[0].PID != p.Process.Pid ||
		all[0].Name != "hold" {
		t.Fatalf("clients: %+v", all)
	}
	if err := forget(f, c); !errors.Is(err, rdma.ErrHeld) {
		t.Fatalf("forget a live client: %v", err)
	}
	if err := Remove("p", false); !errors.Is(err, ErrInUse) {
		t.Fatalf("remove: %v", err)
	}
	p.Kill()
	if all := f.Clients(); len(all) != 1 || all[0].Alive {
		t.Fatalf("clients after the kill: %+v", all)
	}
	for range small.Clients - 1 {
		if e := attachTo(t, openPool(t, "p"), "next"); e.Client() == c {
			t.Fatalf("client %d was handed out again", c)
		}
	}
	_, err := f.Open("more")
	if !errors.Is(err, rdma.ErrFull) || !strings.Contains(err.Error(), "1 dead") {
		t.Fatalf("open of a full pool: %v", err)
	}
	if err := f.Revoke(c); err != nil {
		t.Fatal(err)
	}
	if err := forget(f, c); err != nil {
		t.Fatal(err)
	}
	e := attachTo(t, f, "successor")
	if e.Client() != c {
		t.Fatalf("successor is client %d", e.Client())
	}
	if _, err := do(t, e, func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, 0), 1) }); err != nil {
		t.Fatalf("successor of a revoked client: %v", err)
	}
}

// TestSuccessorOfAMaster kills a master, lets its tenure run out, and gives its identity to
// another client, the successor. Neither the next master nor a candidate that was about to become
// it and slept meanwhile fences the successor off.
func TestSuccessorOfAMaster(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", small)
	p := child.Start(t, "hold", "p")
	c := clientOf(t, p)
	r, ok, err := f.TryMaster(c, 10*time.Millisecond)
	if !ok || err != nil {
		t.Fatalf("%+v, %v, %v", r, ok, err)
	}
	p.Kill()
	if err := forget(f, c); err != nil {
		t.Fatal(err)
	}
	successor, next := attachTo(t, f, "successor"), attachTo(t, f, "next")
	if successor.Client() != c {
		t.Fatalf("successor is client %d", successor.Client())
	}
	for now() < r.Until {
		time.Sleep(time.Millisecond)
	}
	works := func(when string) {
		t.Helper()
		add := func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, 0), 1) }
		if _, err := do(t, successor, add); err != nil {
			t.Errorf("successor, %s: %v", when, err)
		}
	}
	if r, ok, err := f.TryMaster(next.Client(), MaxLease); !ok || err != nil {
		t.Fatalf("%+v, %v, %v", r, ok, err)
	}
	works("once another is master")
	if err := f.fenceLast(roleWord(r)); err != nil {
		t.Error(err)
	}
	works("once a slow candidate fences off the master that it saw")
}

func TestKilledWhileItCreates(t *testing.T) {
	d := inFolder(t)
	p := child.Start(t, "create", "p")
	if s := p.Line(t); s != "formatting" {
		t.Fatalf("child said %q", s)
	}
	p.Kill()
	if left, err := os.ReadDir(d); err != nil || len(left) != 0 {
		t.Fatalf("left behind: %v, %v", left, err)
	}
	createPool(t, "p", small)
}

// TestRevokeWaitsForTheVerbsThatRun fences off a client in the midst of a call.
func TestRevokeWaitsForTheVerbsThatRun(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", small)
	e := attachTo(t, f, "reader")
	p := child.Start(t, "call", "p")
	c := clientOf(t, p)
	revoked := make(chan error)
	go func() { revoked <- f.Revoke(c) }()
	select {
	case err := <-revoked:
		t.Errorf("Revoke returned %v while a procedure of the client was running", err)
	case <-time.After(50 * time.Millisecond):
	}
	p.Release()
	if err := <-revoked; err != nil {
		t.Fatal(err)
	}
	if n, err := do(t, e, func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, 0), 0) }); n != 1 || err != nil {
		t.Fatalf("the procedure's write: %d, %v", n, err)
	}
	p.End(t)
}

// TestFenceWaitsForTheVerbsThatRun fences an epoch while another process is in the midst of a call,
// and kills a node.
func TestFenceWaitsForTheVerbsThatRun(t *testing.T) {
	for name, stop := range map[string]func(f *Fabric) error{
		"fence": func(f *Fabric) error { return f.Fence(1) },
		"expel": func(f *Fabric) error { return f.KillNode(1) },
	} {
		t.Run(name, func(t *testing.T) {
			inFolder(t)
			f := createPool(t, "p", small)
			p := child.Start(t, "call", "p")
			clientOf(t, p)
			stopped := make(chan error)
			go func() { stopped <- stop(f) }()
			select {
			case err := <-stopped:
				t.Errorf("%s returned %v while a procedure was running", name, err)
			case <-time.After(50 * time.Millisecond):
			}
			p.Release()
			if err := <-stopped; err != nil {
				t.Fatal(err)
			}
			p.End(t)
		})
	}
}

// TestSuccessorOfAClientThatDiedInACall checks that what the dead client left does not make its
// successor look busy, or idle.
func TestSuccessorOfAClientThatDiedInACall(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", small)
	p := child.Start(t, "call", "p")
	c := clientOf(t, p)
	p.Kill()
	if err := errors.Join(f.Revoke(c), forget(f, c)); err != nil {
		t.Fatal(err)
	}
	successor := attachTo(t, f, "successor")
	busy := func() bool { return atomic.LoadUint64(&f.head.slot(c).busy)%2 != 0 }
	if successor.Client() != c || busy() {
		t.Fatalf("successor is client %d, busy before its first verb: %v", successor.Client(), busy())
	}
	if err := f.Fence(0); err != nil {
		t.Fatalf("fence while the successor is idle: %v", err)
	}
	read := func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, 0), 8) }
	if _, err := do(t, successor, read); err != nil || busy() {
		t.Fatalf("after a READ, which ended in %v, the successor is busy: %v", err, busy())
	}
	if err := f.Revoke(c); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(successor.Close(), forget(f, c)); err != nil {
		t.Fatal(err)
	}
}

func TestKilledInTheMidstOfAPost(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", small)
	for range 5 {
		p := child.Start(t, "write", "p")
		c := clientOf(t, p)
		time.Sleep(2 * time.Millisecond)
		p.Kill()
		if err := f.Revoke(c); err != nil {
			t.Fatal(err)
		}
		if err := f.KillNode(0); err != nil {
			t.Fatal(err)
		}
		if err := forget(f, c); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCrashClient crashes processes: between two verbs, where they are told to, and not those that
// are gone already.
func TestCrashClient(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", small)
	e := attachTo(t, f, "reader")
	for _, step := range []rdma.Step{"", "one", "two", "three"} {
		p := child.Start(t, "step", "p")
		c := clientOf(t, p)
		var victim rdma.Client
		for _, victim = range f.Clients() {
			if victim.ID == c {
				break
			}
		}
		for until := time.Now().Add(time.Minute); time.Now().Before(until); { // it is at work
			if n, err := do(t, e, func(b *rdma.Batch) *rdma.Op {
				return b.FetchAdd(rdma.At(0, 16), 0)
			}); n > 0 || err != nil {
				break
			}
		}
		if err := f.CrashClient(victim, step); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Fatalf("%q: the process ended with %v", step, err)
		}
		if err := f.CrashClient(victim, step); err == nil {
			t.Errorf("%q: a client that is dead was crashed again", step)
		}
		for _, c := range f.Clients() {
			if c.ID == victim.ID && (c.Alive || c.PID != victim.PID) {
				t.Errorf("%q: after the crash: %+v", step, c)
			}
		}
		b := e.Batch()
		sums := b.Read(rdma.At(0, 0), 24)
		if err := rdma.Do(e, b, time.Second); err != nil {
			t.Fatal(err)
		}
		one, two, three := word(sums.Buf), word(sums.Buf[8:]), word(sums.Buf[16:])
		b.Release()
		if at := map[rdma.Step]bool{
			"": true, "one": one == two && two == three, "two": one == two+1 && two == three,
			"three": one == two && two == three+1,
		}; one == 0 || !at[step] {
			t.Errorf("%q: the process took %d, %d, %d steps", step, one, two, three)
		}
		clean := e.Batch() // of the next one
		for i, n := range []uint64{one, two, three} {
			clean.FetchAdd(rdma.At(0, uint64(8*i)), -n)
		}
		if err := errors.Join(rdma.Do(e, clean, time.Second), f.Forget(victim)); err != nil {
			t.Fatal(err)
		}
		clean.Release()
		if err := f.CrashClient(victim, step); err == nil {
			t.Errorf("%q: a client that was forgotten was crashed", step)
		}
	}
	private, _ := newMem(t)
	if err := private.CrashClient(private.Clients()[0], ""); !errors.Is(err, rdma.ErrNotSupported) {
		t.Errorf("crash a client of a private pool: %v", err)
	}
}

func TestNoWriteLandsAfterRevoke(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", small)
	e := attachTo(t, f, "reader")
	for round := range 10 {
		p := child.Start(t, "write", "p")
		c := clientOf(t, p)
		time.Sleep(time.Duration(round) * 300 * time.Microsecond)
		if err := f.Revoke(c); err != nil {
			t.Fatal(err)
		}
		mark := e.Batch()
		zero := mark.Alloc(4096)
		clear(zero)
		mark.Write(rdma.At(1, 0), zero)
		if err := rdma.Do(e, mark, time.Second); err != nil {
			t.Fatal(err)
		}
		mark.Release()
		if s := p.Line(t); s != "revoked" {
			t.Fatalf("child said %q", s)
		}
		if err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		b := e.Batch()
		r := b.Read(rdma.At(1, 0), 4096)
		if err := rdma.Do(e, b, time.Second); err != nil {
			t.Fatal(err)
		}
		if bytes.ContainsFunc(r.Buf, func(r rune) bool { return r != 0 }) {
			t.Fatalf("round %d: a write landed after Revoke", round)
		}
		b.Release()
		if all := f.Clients(); len(all) != 2 || all[1].Alive {
			t.Fatalf("clients after Revoke and Close: %+v", all)
		}
		if err := forget(f, c); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProcessesAgreeOnTime(t *testing.T) {
	inFolder(t)
	e := attachTo(t, createPool(t, "p", small), "clock")
	before := e.Now()
	p := child.Start(t, "now", "p")
	var ns int64
	if _, err := fmt.Sscan(p.Line(t), &ns); err != nil {
		t.Fatal(err)
	}
	after := e.Now()
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if there := time.Duration(ns); there < before || there > after {
		t.Fatalf("the other process said %v between our %v and %v", there, before, after)
	}
}
