package membership

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	random "math/rand/v2"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Transport brings questions to the acceptors of a pool's memory nodes. It is called concurrently.
// It may lose, delay and repeat questions, and it does not alter them.
type Transport interface {
	// Ask returns the answer of a node's acceptor. It bounds its own time. After an error the
	// question may still arrive. It may use q after it has returned, and does not change it.
	Ask(node int, q *Question) (*Answer, error)
}

const (
	// concurrent bounds the operations of a Quorum at a time; more wait.
	concurrent = 32
	// unanswered bounds the questions that are under way to one node. A node that has so many does
	// not answer, and further questions to it fail at once. It bounds the goroutines, too.
	unanswered = 4 * concurrent
)

// Quorum is a Store that the memory nodes of a pool keep themselves. It works while a majority of
// them answers. A value that it handed to an acceptor is never changed.
type Quorum struct {
	p         proposer
	transport Transport
	// turns has one entry for each operation under way.
	turns chan struct{}
	// closing is closed by Close.
	closing chan struct{}
	// work hands questions to goroutines that have asked one before.
	work chan func()
	// swaps are held by one Swap of a key at a time, so that the Swaps of one process do not outbid
	// each other. Keys share them by hash, which costs time only.
	swaps [16]sync.Mutex

	// mu protects the fields below, but for wg.
	mu     sync.Mutex
	closed bool
	// flying is the number of questions under way, by node, at most unanswered each.
	flying []int
	// listed is the last list, by node. Its answer does not change any more.
	listed []list
	// wg counts operations and questions. It grows only while closed is false.
	wg sync.WaitGroup
}

var _ Store = (*Quorum)(nil)

// NewQuorum returns the Store that the acceptors of nodes 0 to nodes-1 keep. All processes of the
// pool use the same number of nodes: majorities of other sets need not meet.
func NewQuorum(nodes int, t Transport) *Quorum {
	q := &Quorum{
		transport: t, turns: make(chan struct{}, concurrent), closing: make(chan struct{}), work: make(chan func()),
		flying: make([]int, nodes), listed: make([]list, nodes),
	}
	q.p = proposer{nodes: nodes, id: rand.Text(), wire: q}
	return q
}

// NewReader returns a Store for a client that may ask acceptors what they have accepted, and
// nothing else: its Swap fails, since the nodes refuse it. If a writer is in the midst of a change,
// or died there, it returns what a majority has accepted. If no majority agrees, since nodes are
// down besides, it waits for a while: a client that may write completes the change when it reads
// the record, which every candidate does all the time. Then it fails.
func NewReader(nodes int, t Transport) *Quorum {
	q := NewQuorum(nodes, t)
	q.p.reader = true
	return q
}

// Load returns a record. It takes one trip if the first majority to answer agrees, and three if a
// change is under way. The caller owns the value.
func (q *Quorum) Load(key string) ([]byte, uint64, error) {
	var s State
	err := q.operate("load", key, func() (err error) {
		s, err = q.p.load(key)
		return err
	})
	return bytes.Clone(s.Value), s.Version, err
}

// Swap replaces a record, in two trips. The error wraps ErrUncertain if the record may have been
// replaced, or may be later.
func (q *Quorum) Swap(key string, version uint64, value []byte) (ok bool, err error) {
	value = bytes.Clone(value) // questions that were not answered may still be sent later
	h := fnv.New32a()
	h.Write([]byte(key))
	own := &q.swaps[h.Sum32()%uint32(len(q.swaps))]
	own.Lock()
	defer own.Unlock()
	err = q.operate("swap", key, func() (err error) {
		ok, err = q.p.swap(key, version, value)
		return err
	})
	return ok, err
}

// Look returns a record, and those of which the keys begin with prefix. It takes one trip if a
// majority agrees, and more the first time, if the list is long. Nodes send what has changed since
// the Look before.
func (q *Quorum) Look(key, prefix string) (first Record, all []Record, err error) {
	var s State
	err = q.operate("list", prefix, func() (err error) {
		s, all, err = q.p.look(key, prefix)
		return err
	})
	return Record{Key: key, Value: s.Value, Version: s.Version}, all, err
}

// Await waits for a later version of a record. It asks the nodes for the version without the value.
// While they do not answer it goes on asking.
func (q *Quorum) Await(ctx context.Context, key string, version uint64) error {
	return poll(ctx, func() (seen bool, err error) {
		err = q.operate("watch", key, func() (err error) {
			seen, err = q.p.later(key, version)
			return err
		})
		return seen, err
	})
}

// Close ends the use of the Store, and waits for the operations and questions that are under way:
// about as long as the transport takes for a question. Operations that begin later fail with
// rdma.ErrClosed.
func (q *Quorum) Close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.closing)
	}
	q.mu.Unlock()
	q.wg.Wait()
}

// operate runs f when its turn has come, unless the Quorum is closed. At most concurrent run at a
// time.
func (q *Quorum) operate(what, key string, f func() error) error {
	err := rdma.ErrClosed
	if q.begin() {
		defer q.wg.Done()
		select {
		case q.turns <- struct{}{}:
			err = f()
			<-q.turns
		case <-q.closing:
		}
	}
	if err != nil {
		return fmt.Errorf("%s %q on the nodes' registry: %w", what, key, err)
	}
	return nil
}

// begin counts an operation, and reports false if the Quorum is closed. The caller ends it by
// wg.Done.
func (q *Quorum) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.wg.Add(1)
	}
	return !q.closed
}

// errSilent is the error of a question to a node that has too many unanswered ones.
var errSilent = errors.New("a node has left too many questions unanswered")

// spawn runs f on a goroutine: on one that has asked a question before, unless all are busy.
// Growing the stack of a new goroutine takes longer than a question. There are as many of them as
// were ever busy at a time, until Close.
func (q *Quorum) spawn(f func()) {
	select {
	case q.work <- f:
		return
	default:
	}
	go func() {
		for {
			f()
			select {
			case f = <-q.work:
			case <-q.closing:
				return
			}
		}
	}()
}

// ask asks every node on a goroutine of its own, which is free again when the transport is done. It
// calls take on the caller's goroutine, and returns when take returns true; later answers are
// dropped.
func (q *Quorum) ask(question *Question, take func(a *Answer, err error) bool) {
	type reply struct {
		answer *Answer
		err    error
	}
	replies := make(chan reply, q.p.nodes) // room for all, so that late answers do not block
	for node := range q.p.nodes {
		if err := q.launch(node); err != nil {
			replies <- reply{nil, err}
			continue
		}
		q.spawn(func() {
			defer q.land(node)
			a, err := q.put(node, question)
			if err != nil {
				err = fmt.Errorf("node %d: %w", node, err)
			}
			replies <- reply{a, err}
		})
	}
	for range q.p.nodes {
		if r := <-replies; take(r.answer, r.err) {
			return
		}
	}
}

// list is what an acceptor has for a PeekAll. Workers ask for the same list each time they join the
// view, and little of it changes.
type list struct {
	key, with string
	answer    *Answer
}

// put puts a question to one node. For a list it begins with the one that this Quorum has from that
// node, so that the node sends what was accepted since: see relisting. The answer is shared:
// callers do not change it.
func (q *Quorum) put(node int, question *Question) (*Answer, error) {
	if question.Kind != KindPeekAll {
		return q.transport.Ask(node, question)
	}
	q.mu.Lock()
	was := q.listed[node]
	q.mu.Unlock()
	if was.key != question.Key || was.with != question.With {
		was.answer = nil
	}
	// The loop ends: each answer but the last one adds to the list, which is bounded.
	for l := relist(question, was.answer); ; {
		a, err := q.transport.Ask(node, l.ask())
		if err == nil {
			a, err = l.take(a)
		}
		switch {
		case err != nil:
			return nil, err
		case a == nil && q.isClosed():
			return nil, rdma.ErrClosed
		case a == nil:
			continue
		case a.Mark != "":
			q.mu.Lock()
			q.listed[node] = list{question.Key, question.With, a}
			q.mu.Unlock()
		}
		return a, nil
	}
}

// isClosed reports whether Close was called.
func (q *Quorum) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// launch counts a question to a node, unless the Quorum is closed or the node has too many.
func (q *Quorum) launch(node int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return rdma.ErrClosed
	case q.flying[node] >= unanswered:
		return fmt.Errorf("node %d: %w", node, errSilent)
	}
	q.flying[node]++
	q.wg.Add(1)
	return nil
}

// land ends what launch counted.
func (q *Quorum) land(node int) {
	q.mu.Lock()
	q.flying[node]--
	q.mu.Unlock()
	q.wg.Done()
}

// pause waits a random time below d, or until the Quorum is closed, whichever is earlier.
func (q *Quorum) pause(d time.Duration) {
	t := time.NewTimer(random.N(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-q.closing:
	}
}
