package membership_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/membership/membershiptest"
	"github.com/farkv/farkv/node/rdma"
)

// nodes are acceptors that are asked in JSON, as over a wire.
type nodes struct {
	mu        sync.Mutex
	acceptors []*membership.Acceptor
	down      map[int]bool
	jitter    time.Duration
	block     chan struct{} // nil, or what questions to node 0 wait for
}

func newNodes(n int, l membership.Limits) *nodes {
	s := &nodes{down: map[int]bool{}}
	for range n {
		s.acceptors = append(s.acceptors, membership.NewAcceptor(l))
	}
	return s
}

// set makes nodes down, or up again, while stragglers ask them.
func (s *nodes) set(down bool, which ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range which {
		s.down[n] = down
	}
}

var errDown = errors.New("connection refused")

func (s *nodes) Ask(node int, q *membership.Question) (*membership.Answer, error) {
	s.mu.Lock()
	block, down, jitter := s.block, s.down[node], s.jitter
	s.mu.Unlock()
	if block != nil && node == 0 {
		<-block
	}
	if down {
		return nil, errDown
	}
	if jitter > 0 {
		time.Sleep(rand.N(jitter))
	}
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	asked := &membership.Question{}
	if err := json.Unmarshal(text, asked); err != nil {
		return nil, err
	}
	s.mu.Lock()
	text, err = json.Marshal(s.acceptors[node].Answer(asked))
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	answer := &membership.Answer{}
	return answer, json.Unmarshal(text, answer)
}

func quorum(t testing.TB, s *nodes) *membership.Quorum {
	q := membership.NewQuorum(len(s.acceptors), s)
	t.Cleanup(q.Close)
	return q
}

func TestMemory(t *testing.T) {
	membershiptest.Run(t, func(testing.TB) []membership.Store { return []membership.Store{membership.Memory()} })
}

func TestQuorum(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		for down := range (n + 1) / 2 {
			t.Run(fmt.Sprintf("%d of %d down", down, n), func(t *testing.T) {
				membershiptest.Run(t, func(t testing.TB) []membership.Store {
					s := newNodes(n, membership.LimitsFor(n, 100))
					for node := range down {
						s.set(true, node)
					}
					return []membership.Store{quorum(t, s), quorum(t, s), quorum(t, s)}
				})
			})
		}
	}
}

// TestQuorumJitter has the answers come in any order.
func TestQuorumJitter(t *testing.T) {
	membershiptest.Run(t, func(t testing.TB) []membership.Store {
		s := newNodes(3, membership.LimitsFor(3, 100))
		s.jitter = 200 * time.Microsecond
		return []membership.Store{quorum(t, s), quorum(t, s)}
	})
}

func TestQuorumOutOfReach(t *testing.T) {
	s := newNodes(3, membership.LimitsFor(3, 10))
	q := quorum(t, s)
	if ok, err := q.Swap("key", 0, []byte("one")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	s.set(true, 0, 2)
	_, _, err := q.Load("key")
	if !errors.Is(err, membership.ErrUnreachable) || errors.Is(err, membership.ErrUncertain) ||
		!strings.Contains(err.Error(), `load "key"`) || !strings.Contains(err.Error(), errDown.Error()) {
		t.Errorf("load: %v", err)
	}
	if ok, err := q.Swap("key", 1, nil); ok || !errors.Is(err, membership.ErrUnreachable) ||
		errors.Is(err, membership.ErrUncertain) {
		t.Errorf("swap, which no majority has promised anything: %v, %v", ok, err)
	}
	if _, _, err := q.Look("", ""); !errors.Is(err, membership.ErrUnreachable) {
		t.Errorf("list: %v", err)
	}
	s.set(false, 0)
	if value, version, err := q.Load("key"); err != nil || string(value) != "one" || version != 1 {
		t.Errorf("with a majority again: %q, %d, %v", value, version, err)
	}
}

// peeking fails whatever a reader must not ask.
type peeking struct{ *nodes }

func (p peeking) Ask(node int, q *membership.Question) (*membership.Answer, error) {
	if q.Kind != membership.KindPeek && q.Kind != membership.KindPeekAll {
		return nil, rdma.ErrAccess
	}
	return p.nodes.Ask(node, q)
}

// TestReader has one node accept a state that no other has, as a writer leaves it that dies in the
// midst of a Swap. A reader returns what was chosen, and nothing where that cannot be told, until a
// writer has looked.
func TestReader(t *testing.T) {
	s := newNodes(3, membership.LimitsFor(3, 10))
	writer, reader := quorum(t, s), membership.NewReader(3, peeking{s})
	t.Cleanup(reader.Close)
	if ok, err := writer.Swap("key", 0, []byte("one")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	acceptor := func(do func(a *membership.Acceptor)) { // a straggler's question may be on its way
		s.mu.Lock()
		defer s.mu.Unlock()
		do(s.acceptors[0])
	}
	var e membership.Entry
	for range 1000 { // the other two are a majority, too
		if acceptor(func(a *membership.Acceptor) { e = a.Peek("key").Entries[0] }); e.State.Version == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	e.Ballot.Counter++
	e.State.Version, e.State.Writer, e.State.Value = 2, "dead.1", []byte("two")
	acceptor(func(a *membership.Acceptor) { a.Accept("key", e.Ballot, e.State) })
	reads := func(what, want string, version uint64) {
		t.Helper()
		for range 20 { // the answers come in any order
			if value, v, err := reader.Load("key"); string(value) != want || v != version || err != nil {
				t.Fatalf("%s: load: %q at version %d, %v; want %q", what, value, v, err, want)
			}
			if _, all, err := reader.Look("", ""); err != nil || len(all) != 1 || string(all[0].Value) != want {
				t.Fatalf("%s: list: %+v, %v; want %q", what, all, err, want)
			}
		}
	}
	reads("a majority has the state before", "one", 1)
	s.set(true, 2)
	_, _, err := reader.Load("key")
	if !errors.Is(err, membership.ErrUnreachable) ||
		!strings.Contains(err.Error(), "2 of the pool's 3 nodes answered, and do not agree") {
		t.Errorf("what was chosen cannot be known: %v", err)
	}
	if _, _, err := reader.Look("", ""); !errors.Is(err, membership.ErrUnreachable) {
		t.Errorf("what was chosen cannot be known: list: %v", err)
	}
	if value, _, err := writer.Load("key"); string(value) != "two" || err != nil {
		t.Fatal(value, err)
	}
	reads("a writer has looked", "two", 2)
	s.set(false, 2)
	reads("a node that missed it is back", "two", 2)
	if ok, err := reader.Swap("key", 2, nil); ok || err == nil {
		t.Errorf("a reader has written: %v, %v", ok, err)
	}
}

// TestQuorumCloses has a node not answer: others do, and nothing but Close waits for it.
func TestQuorumCloses(t *testing.T) {
	s := newNodes(3, membership.LimitsFor(3, 10))
	s.mu.Lock()
	s.block = make(chan struct{})
	s.mu.Unlock()
	q := membership.NewQuorum(3, s)
	for i := range uint64(100) { // more than the questions that one node may leave unanswered
		if ok, err := q.Swap("key", i, []byte("value")); !ok || err != nil {
			t.Fatal(i, ok, err)
		}
	}
	closed := make(chan struct{})
	go func() { q.Close(); close(closed) }()
	for { // until Close has begun
		if _, _, err := q.Load("key"); errors.Is(err, rdma.ErrClosed) {
			break
		} else if err != nil && !errors.Is(err, membership.ErrUnreachable) { // one that was under way when Close began
			t.Fatal(err)
		}
	}
	select {
	case <-closed:
		t.Error("closed while a question is under way")
	default:
	}
	close(s.block)
	<-closed
	q.Close()
}

// TestQuorumListsPages lists more than one answer holds, while a node has missed some of it.
func TestQuorumListsPages(t *testing.T) {
	const n = 300
	l := membership.Limits{Keys: n, Key: 64, Value: 4096, Bytes: 1 << 30}
	s := newNodes(3, l)
	q := quorum(t, s)
	for i := range n {
		s.set(true, i%3)
		s.set(false, (i+1)%3, (i+2)%3)
		if ok, err := q.Swap(fmt.Sprintf("%05d", i), 0, make([]byte, 4096)); !ok || err != nil {
			t.Fatal(i, ok, err)
		}
	}
	s.set(false, 0, 1, 2)
	_, all, err := q.Look("", "")
	if err != nil || len(all) != n {
		t.Fatalf("%d records, %v", len(all), err)
	}
	for i, r := range all {
		if r.Key != fmt.Sprintf("%05d", i) || r.Version != 1 || len(r.Value) != 4096 {
			t.Fatalf("record %d is %q at version %d", i, r.Key, r.Version)
		}
	}
}

func TestQuorumFull(t *testing.T) {
	q := quorum(t, newNodes(3, membership.Limits{Keys: 2, Key: 4, Value: 10, Bytes: 1 << 20}))
	for key, want := range map[string]error{"a": nil, "long key": rdma.ErrAccess} {
		if _, err := q.Swap(key, 0, []byte("0123456789")); !errors.Is(err, want) {
			t.Errorf("%q: %v", key, err)
		}
	}
	if _, err := q.Swap("b", 0, []byte("0123456789A")); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("a long value: %v", err)
	}
	if _, err := q.Swap("c", 0, nil); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
}
