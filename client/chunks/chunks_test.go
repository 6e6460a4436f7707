package chunks

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const timeout = time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// arena returns one of so many chunks, behind its table.
func arena(count int) *Arena {
	a := &Arena{Table: node.HeaderBytes, Bytes: 64, Count: uint64(count)}
	a.First = (a.Table + 8*a.Count + 63) &^ 63
	return a
}

func (a *Arena) memory() uint64 { return (a.End() + 4095) &^ 4095 }

// pool makes a pool of memory of this process, of two nodes.
func pool(t testing.TB, a *Arena) rdma.Fabric {
	t.Helper()
	f, err := shm.NewMem(shm.Geometry{Nodes: 2, Memory: a.memory(), Clients: 8}, node.Serve)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	for n := range 2 {
		must(t, node.Commit(f, n, a.Table, 8*a.Count))
	}
	return f
}

// user is a client that counts its trips by step.
type user struct {
	Client
	trips map[rdma.Step]int
}

func newUser(ep rdma.Endpoint) *user {
	u := &user{trips: map[rdma.Step]int{}}
	u.Client = Client{Endpoint: ep, ID: ep.Client(), Steps: Steps{"read", "claim", "free"}}
	u.Do = func(step rdma.Step, b *rdma.Batch) error {
		u.trips[step]++
		return rdma.Do(ep, b.As(step), timeout)
	}
	u.Drop = func(b *rdma.Batch) { b.Release() }
	return u
}

func open(t testing.TB, f rdma.Fabric) *user {
	t.Helper()
	ep, err := f.Open(t.Name())
	must(t, err)
	t.Cleanup(func() { must(t, ep.Close()) })
	return newUser(ep)
}

// fill takes the first chunks of a node, of classes 0 to 2 in turn.
func (u *user) fill(t testing.TB, a *Arena, n, count int) (all []Chunk) {
	t.Helper()
	for i := range count {
		c, ok, err := u.Fresh(a, n, i%3, int(a.Count), uint64(i), timeout)
		if must(t, err); !ok || c.Node != n || c.Index != i || c.Entry.Owner() != u.ID || c.Entry.Class() != i%3 {
			t.Fatalf("got %+v, %v, want chunk %d of client %d", c, ok, i, u.ID)
		}
		all = append(all, c)
	}
	return all
}

// TestFresh: a chunk is handed out once, from an index on, and of the first ones only when so many
// are asked for.
func TestFresh(t *testing.T) {
	a := arena(10)
	f := pool(t, a)
	u, other := open(t, f), open(t, f)
	u.fill(t, a, 1, 3)
	for _, c := range []struct {
		count int
		from  uint64
		want  int // -1: none
	}{{3, 0, -1}, {5, 0, 3}, {10, 7, 7}, {5, 0, 4}, {5, 0, -1}, {10, 0, 5}, {10, 6, 6}, {10, 7, 8}, {10, 9, 9}, {10, 3,
		-1}} {
		got, ok, err := other.Fresh(a, 1, 2, c.count, c.from, timeout)
		if must(t, err); ok != (c.want >= 0) || ok && (got.Index != c.want || got.Entry.Owner() != other.ID) {
			t.Errorf("of the first %d, from %d on: got %+v, %v, want %d", c.count, c.from, got, ok, c.want)
		}
	}
	if u.Late || other.Late {
		t.Errorf("all calls were answered, and a chunk may be handed out yet")
	}
}

// refused is an endpoint on which calls fail.
type refused struct {
	rdma.Endpoint
	err error
}

func (e refused) Call(int, *rdma.Request, time.Duration) error { return e.err }

// TestLate: a call that may be served yet is remembered; one that was not sent, was refused, or was
// lost with its connection is not.
func TestLate(t *testing.T) {
	a := arena(10)
	u := open(t, pool(t, a))
	ep := u.Endpoint
	for _, c := range []struct {
		err  error
		late bool
	}{{rdma.ErrNodeDown, false}, {rdma.ErrStale, false}, {rdma.ErrTimeout, true}, {rdma.ErrNodeDown, true}} {
		u.Endpoint = refused{ep, c.err}
		if _, _, err := u.Fresh(a, 0, 0, 10, 0, timeout); !errors.Is(err, c.err) || u.Late != c.late {
			t.Errorf("behind %v: got %v, late: %v", c.err, err, u.Late)
		}
	}
}

// TestClaim: a claim does not get a chunk of which the word has changed, and leaves it as it is.
func TestClaim(t *testing.T) {
	a := arena(150)
	f := pool(t, a)
	u, other := open(t, f), open(t, f)
	mine := u.fill(t, a, 0, 150)
	must(t, u.Free(a, mine))
	if u.trips["free"] != 3 {
		t.Errorf("150 chunks were given back in %d trips, want 3", u.trips["free"])
	}
	must(t, u.Free(a, mine)) // as they were before: nothing happens
	var left []Chunk
	must(t, u.Left(a, 0, 150, nil, func(some []Chunk) (bool, error) {
		left = append(left, some...)
		return false, nil
	}))
	if len(left) != 150 {
		t.Fatalf("%d chunks are left, want 150", len(left))
	}
	first, err := other.Claim(a, left[:70])
	must(t, err)
	again, err := u.Claim(a, left)
	if must(t, err); len(first) != 70 || len(again) != 80 {
		t.Errorf("claims got %d and %d, want 70 and 80", len(first), len(again))
	}
	for _, got := range []struct {
		u    *user
		list []Chunk
	}{{other, first}, {u, again}} {
		slices.SortFunc(got.list, func(x, y Chunk) int { return x.Index - y.Index })
		if of, err := u.Of(a, 0, got.u.ID); err != nil || !slices.Equal(of, got.list) {
			t.Errorf("client %d has %v, %v, want %v", got.u.ID, of, err, got.list)
		}
	}
	for _, c := range first {
		if c.Entry.Owner() != other.ID || c.Entry.Class() != c.Index%3 {
			t.Errorf("got %+v, want class %d", c, c.Index%3)
		}
	}
}

// TestLeft: of chunks that were given back a client looks at one, then at twice as many each time,
// and at each once, but for those that it skips, until it is done.
func TestLeft(t *testing.T) {
	a := arena(tableAtOnce + 500)
	u := open(t, pool(t, a))
	var left []Chunk
	for _, c := range u.fill(t, a, 1, int(a.Count)) {
		if c.Index%2 == 0 && c.Index < tableAtOnce || c.Index%100 == 99 {
			left = append(left, c)
		}
	}
	must(t, u.Free(a, left))
	skip := func(c Chunk) bool { return c.Entry.Class() == 1 }
	seen, sizes := map[int]bool{}, []int{}
	must(t, u.Left(a, 1, 8, skip, func(some []Chunk) (bool, error) {
		sizes = append(sizes, len(some))
		for _, c := range some {
			if seen[c.Index] || skip(c) || c.Entry.Owner() != node.Left {
				t.Errorf("got %+v", c)
			}
			seen[c.Index] = true
		}
		return false, nil
	}))
	for _, c := range left {
		if seen[c.Index] == skip(c) {
			t.Errorf("chunk %d, of class %d: looked at: %v", c.Index, c.Entry.Class(), seen[c.Index])
		}
	}
	if fmt.Sprint(sizes[:3]) != "[1 2 4]" || slices.Max(sizes) != 8 {
		t.Errorf("it looked at %v, want 1, 2, 4 and then 8", sizes)
	}
	for _, failed := range []error{nil, errors.New("no more")} {
		looks := 0
		err := u.Left(a, 1, 8, nil, func([]Chunk) (bool, error) {
			looks++
			return looks == 2, failed
		})
		if want := map[bool]int{true: 2, false: 1}[failed == nil]; looks != want || err != failed {
			t.Errorf("it looked %d times and got %v, want %d and %v", looks, err, want, failed)
		}
	}
	must(t, u.Left(arena(0), 0, 8, nil, nil))
}

// TestOwed: chunks of which a give-back fails are given back with the next ones. As long as that
// fails, too, others are given back.
func TestOwed(t *testing.T) {
	a := arena(20)
	u := open(t, pool(t, a))
	all, do, down := u.fill(t, a, 0, 20), u.Do, true
	u.Do = func(step rdma.Step, b *rdma.Batch) error {
		if step == "free" && down && b.Op(0).Addr == a.Word(0, 0) {
			return rdma.ErrNodeDown
		}
		return do(step, b)
	}
	mine := func() int {
		of, err := u.Of(a, 0, u.ID)
		must(t, err)
		return len(of)
	}
	list := slices.Clone(all[:5])
	if err := u.Free(a, list); !errors.Is(err, rdma.ErrNodeDown) {
		t.Fatalf("it ends in %v", err)
	}
	clear(list) // it is the caller's
	must(t, u.Free(a, all[5:10]))
	if n := mine(); n != 15 {
		t.Errorf("the client has %d chunks while a node is down, want 15", n)
	}
	down = false
	must(t, u.Free(a, all[10:15]))
	if n := mine(); n != 5 {
		t.Errorf("the client has %d chunks in the end, want 5", n)
	}
	before := u.trips["free"]
	must(t, u.Free(a, all[15:]))
	if n := mine(); n != 0 || u.trips["free"] != before+1 {
		t.Errorf("the client has %d chunks, and has given the last ones back in %d trips", n, u.trips["free"]-before)
	}
}

// TestSurvey: a tool sees the words that a client sees, of a table that takes several trips, and no
// other node's.
func TestSurvey(t *testing.T) {
	a := arena(2*tableAtOnce + 1)
	u := open(t, pool(t, a))
	mine := u.fill(t, a, 1, int(a.Count))
	read, err := u.Read(a, 1)
	must(t, err)
	if len(read) != len(mine) || u.trips["read"] != 3 {
		t.Errorf("read %d words in %d trips, want %d in 3", len(read), u.trips["read"], len(mine))
	}
	for i, e := range read {
		if e != mine[i].Entry {
			t.Fatalf("chunk %d is %v, want %v", i, e, mine[i].Entry)
		}
	}
	seen, err := a.Survey(u.Endpoint, "survey", 1, timeout)
	if must(t, err); !slices.Equal(seen, read) {
		t.Errorf("a survey sees other words")
	}
	seen, err = a.Survey(u.Endpoint, "survey", 0, timeout)
	if must(t, err); slices.ContainsFunc(seen, func(e node.Entry) bool { return e != 0 }) {
		t.Errorf("a survey sees chunks of a node that has handed out none")
	}
}

// TestOneOwner: over a slow network, which reorders, a chunk has one client at a time.
func TestOneOwner(t *testing.T) {
	a := arena(20)
	for seed := range uint64(20) {
		s := sim.New(sim.Options{Seed: seed, Nodes: 1, Memory: a.memory(), Clients: 4, Handler: node.Serve,
			Reorder: true})
		must(t, node.Commit(s, 0, a.Table, 8*a.Count))
		owner := map[int]rdma.ClientID{}
		claims := 0
		var failed error
		for range 3 {
			s.Go("user", func(ep rdma.Endpoint) {
				u := newUser(ep)
				failed = errors.Join(failed, u.compete(a, owner, &claims))
			})
		}
		must(t, errors.Join(s.Run(), failed))
		if s.Close(); claims < 100 {
			t.Errorf("seed %d: %d claims, want more", seed, claims)
		}
	}
}

// compete takes chunks and gives them back.
func (u *user) compete(a *Arena, owner map[int]rdma.ClientID, claims *int) error {
	held := []Chunk{}
	for fresh := true; fresh; {
		var c Chunk
		var err error
		if c, fresh, err = u.Fresh(a, 0, 1, int(a.Count), 0, timeout); err != nil {
			return err
		}
		if fresh {
			held = append(held, c)
		}
	}
	for range 20 {
		for _, c := range held {
			if of := owner[c.Index]; of != 0 {
				return fmt.Errorf("client %d takes chunk %d, of client %d", u.ID, c.Index, of)
			}
			owner[c.Index] = u.ID
		}
		*claims += len(held)
		u.Endpoint.Sleep(10 * time.Microsecond)
		for _, c := range held {
			delete(owner, c.Index)
		}
		if err := u.Free(a, held); err != nil {
			return err
		}
		held = nil
		err := u.Left(a, 0, 4, nil, func(some []Chunk) (bool, error) {
			got, err := u.Claim(a, some)
			held = append(held, got...)
			return len(held) > 5, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
