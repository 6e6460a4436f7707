package membership_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/farkv/farkv/node/membership"
)

// listing counts the entries that nodes list.
type listing struct {
	*nodes
	entries atomic.Int64
	lies    atomic.Bool // every list is what has changed since another one
}

func (l *listing) Ask(node int, q *membership.Question) (*membership.Answer, error) {
	if q.Kind == membership.KindPeekAll && l.lies.Load() {
		return &membership.Answer{Since: "another", Mark: "another"}, nil
	}
	a, err := l.nodes.Ask(node, q)
	if err == nil && q.Kind == membership.KindPeekAll {
		l.entries.Add(int64(len(a.Entries)))
	}
	return a, err
}

// TestList: nodes list what has changed of a folder since it was listed last, by this process or by
// another, and all of it where an acceptor was restarted.
func TestList(t *testing.T) {
	const n = 3
	s := &listing{nodes: newNodes(n, membership.LimitsFor(n, 100))}
	one, two := membership.NewQuorum(n, s), membership.NewQuorum(n, s)
	defer one.Close()
	defer two.Close()
	var want []string
	with := uint64(0)
	lists := func(what string, entries int) {
		t.Helper()
		s.entries.Store(0)
		first, all, err := one.Look("with", "c/")
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if first.Version != with {
			t.Errorf("%s: the record with them is %+v, want version %d", what, first, with)
		}
		var got []string
		for _, r := range all {
			got = append(got, fmt.Sprint(r.Key, r.Version))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		one.Settle()
		if got := int(s.entries.Load()); got != entries {
			t.Errorf("%s: nodes listed %d entries, want %d", what, got, entries)
		}
	}
	change := func(q *membership.Quorum, key string, version uint64) {
		t.Helper()
		if ok, err := q.Swap(key, version, []byte("value")); !ok || err != nil {
			t.Fatal(ok, err)
		}
		q.Settle()
		if strings.HasPrefix(key, "c/") {
			want = slices.DeleteFunc(want, func(w string) bool { return strings.HasPrefix(w, key) })
			want = append(want, fmt.Sprint(key, version+1))
			slices.Sort(want)
		}
	}
	lists("nothing", 0)
	change(one, "c/1", 0)
	lists("a record", n)
	lists("the same", 0)
	change(two, "c/2", 0)
	lists("another record", n)
	change(two, "master", 0)
	lists("the same, beside another record", 0)
	change(two, "c/1", 1)
	lists("a later version", n)
	change(two, "with", 0)
	with = 1
	lists("one that the others are asked for with", 0)

	s.mu.Lock()
	restarted := membership.NewAcceptor(membership.LimitsFor(n, 100))
	for _, key := range []string{"c/1", "c/1", "c/2", "with", "with"} { // as many changes as in its first life
		p, _ := s.acceptors[0].Promise(key)
		restarted.Accept(key, p.Accepted, p.State)
	}
	s.acceptors[0] = restarted
	s.mu.Unlock()
	lists("by a node that was restarted", 2)
	change(two, "c/3", 0)
	lists("a third record", n)
	lists("the same", 0)

	s.lies.Store(true)
	if _, all, err := one.Look("", "c/"); err == nil {
		t.Errorf("nodes that refer to what was never seen: %v", all)
	}
	if _, all, err := two.Look("", "c/"); err == nil {
		t.Errorf("nodes that refer to what was never seen: %v", all)
	}
}

// overtaking lets another process write when a look is about to complete what a writer has left
// half done.
type overtaking struct {
	*nodes
	once  sync.Once
	write func()
}

func (o *overtaking) Ask(node int, q *membership.Question) (*membership.Answer, error) {
	if q.Kind == membership.KindPrepare {
		o.once.Do(o.write)
	}
	return o.nodes.Ask(node, q)
}

// TestLookInOrder looks at a record that a writer has left half done, and at others, of which one
// is written before the first is completed: a look that returns the first returns that, too.
func TestLookInOrder(t *testing.T) {
	s := newNodes(3, membership.LimitsFor(3, 100))
	s.acceptors[0].Accept("first", membership.Ballot{Counter: 1, Proposer: "half"},
		membership.State{Version: 1, Writer: "half"})
	s.set(true, 2)
	q := membership.NewQuorum(3, &overtaking{nodes: s, write: func() {
		if ok, err := quorum(t, s).Swap("c/1", 0, nil); !ok || err != nil {
			t.Error(ok, err)
		}
	}})
	defer q.Close()
	first, all, err := q.Look("first", "c/")
	if err != nil || first.Version != 1 || len(all) != 1 {
		t.Errorf("%+v and %+v, %v", first, all, err)
	}
}

// TestLongList lists more than one answer has, and then what has changed of it.
func TestLongList(t *testing.T) {
	const records = 2000
	s := &listing{nodes: newNodes(1, membership.LimitsFor(1, records))}
	q := membership.NewQuorum(1, s)
	defer q.Close()
	for i := range records {
		if ok, err := q.Swap(fmt.Sprintf("c/%04d", (i*7)%records), 0, make([]byte, i%300)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if ok, err := q.Swap("c/0007", 1, []byte("again")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, want := range []int64{records, 0} {
		s.entries.Store(0)
		_, all, err := q.Look("", "c/")
		if err != nil || len(all) != records || string(all[7].Value) != "again" {
			t.Fatalf("%d records are known, %v", len(all), err)
		}
		if !slices.IsSortedFunc(all, func(x, y membership.Record) int { return strings.Compare(x.Key, y.Key) }) {
			t.Error("the list is not sorted")
		}
		if n := s.entries.Load(); n != want {
			t.Errorf("nodes listed %d entries, want %d", n, want)
		}
	}
}

// TestForgottenList: of nodes that begin anew nothing is listed that they had before.
func TestForgottenList(t *testing.T) {
	s := newNodes(1, membership.LimitsFor(1, 9))
	q := quorum(t, s)
	if ok, err := q.Swap("c/1", 0, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, all, err := q.Look("", "c/"); err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	s.mu.Lock()
	s.acceptors[0] = membership.NewAcceptor(membership.LimitsFor(1, 9))
	s.mu.Unlock()
	if _, all, err := q.Look("", "c/"); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
}

// TestRestoredList: what an acceptor was restored with is listed.
func TestRestoredList(t *testing.T) {
	a, b := membership.NewAcceptor(membership.LimitsFor(1, 9)), membership.NewAcceptor(membership.LimitsFor(1, 9))
	a.Accept("c/1", membership.Ballot{Counter: 1, Proposer: "p"}, membership.State{Version: 1, Writer: "w"})
	p, _ := a.Promise("c/1")
	b.Restore(p)
	first := b.PeekAll("c/", "", "")
	if next := b.PeekAll("c/", "", first.Mark); len(first.Entries) != 1 || len(next.Entries) != 0 || next.Since == "" {
		t.Errorf("%+v, and then %+v", first, next)
	}
}
