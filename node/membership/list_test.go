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
	lies    atomic.Bool // every list is the same as before
}

func (l *listing) Ask(node int, q *membership.Question) (*membership.Answer, error) {
	if q.Kind == membership.KindPeekAll && l.lies.Load() {
		return &membership.Answer{Same: true, Mark: "another"}, nil
	}
	a, err := l.nodes.Ask(node, q)
	if err == nil && q.Kind == membership.KindPeekAll {
		l.entries.Add(int64(len(a.Entries)))
	}
	return a, err
}

// TestSameList: a folder that has not changed since it was listed last is not listed again; one
// that has changed is, by this process or by another, and so is one of an acceptor that was
// restarted.
func TestSameList(t *testing.T) {
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
	lists("two records", 2*n)
	change(two, "master", 0)
	lists("the same, beside another record", 0)
	change(two, "c/1", 1)
	lists("a later version", 2*n)
	change(two, "with", 0)
	with = 1
	lists("one that the others are asked for with", 2*n)
	lists("the same", 0)

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
	lists("three records", 3*n)
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
