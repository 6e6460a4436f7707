package board

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
type Transport interface {
	// Ask returns the answer of a node's acceptor. It bounds its own time. After an error the
	// question may still arrive.
	Ask(node int, q *Question) (*Answer, error)
}

const (
	concurrent = 32             // operations of a Quorum at a time; more wait
	unanswered = 4 * concurrent // questions to one node; more are not asked, since that node does not answer anyway
)

// Quorum is a Store that the memory nodes of a pool keep themselves: it works while a majority of
// them answers.
type Quorum struct {
	p         proposer
	transport Transport
	turns     chan struct{} // held by operations
	closing   chan struct{}
	work      chan func() // for goroutines that wait for another question
	// swaps are held by one Swap of a key at a time, so that those of one process do not duel with
	// each other.
	swaps [16]sync.Mutex

	mu     sync.Mutex
	closed bool
	flying []int  // questions, by node
	listed []list // the last one that has a mark, by node
	wg     sync.WaitGroup
}

var _ Store = (*Quorum)(nil)

// NewQuorum returns the Store that the acceptors of nodes 0 to nodes-1 keep.
func NewQuorum(nodes int, t Transport) *Quorum {
	q := &Quorum{
		transport: t, turns: make(chan struct{}, concurrent), closing: make(chan struct{}), work: make(chan func()),
		flying: make([]int, nodes), listed: make([]list, nodes),
	}
	q.p = proposer{nodes: nodes, id: rand.Text(), wire: q}
	return q
}

// NewReader returns a Store for a client that may ask acceptors what they have accepted, and
// nothing else: Swap fails. Where a writer has died, or is, in the midst of a change, it returns
// what a majority has. While nodes are down besides, so that no majority agrees, it waits for a
// while for a client that may write to look there, as every keeper does all the time, and then
// fails.
func NewReader(nodes int, t Transport) *Quorum {
	q := NewQuorum(nodes, t)
	q.p.reader = true
	return q
}

// Load returns a record. It takes one trip when a majority agrees, and three when a change is under
// way.
func (q *Quorum) Load(key string) ([]byte, uint64, error) {
	var s State
	err := q.operate("load", key, func() (err error) {
		s, err = q.p.load(key)
		return err
	})
	return bytes.Clone(s.Value), s.Version, err
}

// Swap replaces a record, in two trips. An error wraps ErrUncertain when it may have been replaced.
func (q *Quorum) Swap(key string, version uint64, value []byte) (ok bool, err error) {
	value = bytes.Clone(value) // stragglers may be sent later
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

// Look returns a record, and those whose keys begin so. It takes one trip when majorities agree.
func (q *Quorum) Look(key, prefix string) (first Record, all []Record, err error) {
	var s State
	err = q.operate("list", prefix, func() (err error) {
		s, all, err = q.p.look(key, prefix)
		return err
	})
	for i := range all {
		all[i].Value = bytes.Clone(all[i].Value)
	}
	return Record{Key: key, Value: bytes.Clone(s.Value), Version: s.Version}, all, err
}

// Await waits for another version of a record, of which it asks the nodes without its value. While
// they do not answer it goes on asking.
func (q *Quorum) Await(ctx context.Context, key string, version uint64) error {
	return poll(ctx, func() (seen bool, err error) {
		err = q.operate("watch", key, func() (err error) {
			seen, err = q.p.later(key, version)
			return err
		})
		return seen, err
	})
}

// Close ends the use of the Store and waits for what is under way: as long as the transport takes
// for a question at most.
func (q *Quorum) Close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.closing)
	}
	q.mu.Unlock()
	q.wg.Wait()
}

// operate runs f unless the Quorum is closed, when its turn has come.
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
		return fmt.Errorf("%s %q on the nodes' board: %w", what, key, err)
	}
	return nil
}

func (q *Quorum) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.wg.Add(1)
	}
	return !q.closed
}

// errSilent is the failure of a node to which too many questions are under way.
var errSilent = errors.New("a node has left too many questions unanswered")

// spawn has a goroutine do f: one that has done so before, unless all are busy, since to grow the
// stack of a new one takes longer than a question. There are as many as were busy at a time, until
// Close.
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

// ask asks every node from a goroutine of its own, which is free when the transport is done.
func (q *Quorum) ask(question *Question, take func(a *Answer, err error) bool) {
	type reply struct {
		answer *Answer
		err    error
	}
	replies := make(chan reply, q.p.nodes) // so that stragglers end
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

// list is what an acceptor has told of a record and a folder. Keepers look at the same ones several
// times in each lease, and they seldom change.
type list struct {
	key, with string
	answer    *Answer
}

// put puts a question to one node. Of a list that is the same as before the node says so, and no
// more.
func (q *Quorum) put(node int, question *Question) (*Answer, error) {
	if question.Kind != KindPeekAll || question.After != "" {
		return q.transport.Ask(node, question)
	}
	q.mu.Lock()
	was := q.listed[node]
	q.mu.Unlock()
	own := *question
	if was.key == own.Key && was.with == own.With && was.answer != nil {
		own.Seen = was.answer.Mark
	}
	a, err := q.transport.Ask(node, &own)
	switch {
	case err != nil || a == nil:
		return a, err
	case a.Same && (own.Seen == "" || a.Mark != own.Seen):
		return nil, fmt.Errorf("a list of %q that is the same as one that was not seen", own.Key)
	case a.Same:
		return was.answer, nil
	case a.Mark != "":
		q.mu.Lock()
		q.listed[node] = list{own.Key, own.With, a}
		q.mu.Unlock()
	}
	return a, nil
}

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

func (q *Quorum) land(node int) {
	q.mu.Lock()
	q.flying[node]--
	q.mu.Unlock()
	q.wg.Done()
}

// pause waits a random time below d, or until the Quorum is closed.
func (q *Quorum) pause(d time.Duration) {
	t := time.NewTimer(random.N(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-q.closing:
	}
}
