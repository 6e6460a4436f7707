package board

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const (
	duels       = 24 // rounds of one call that others may win
	silences    = 2  // rounds of one call that too few may answer
	glances     = 4  // looks of a reader that not all answer, and that tell nothing
	backoff     = time.Millisecond
	backoffMost = 64 * time.Millisecond
)

// ErrUncertain is wrapped, beside ErrUnreachable, when a Swap may have happened, or may still do
// so.
var ErrUncertain = errors.New("the record may have been replaced")

// wire is a proposer's way to the acceptors, and to time and chance.
type wire interface {
	// ask puts a question to every acceptor and hands take what each answers, one at a time, until
	// take returns true or all have answered or failed. An acceptor may get the question after ask
	// has returned.
	ask(q *Question, take func(a *Answer, err error) (enough bool))
	// pause waits a random time below d.
	pause(d time.Duration)
}

// proposer changes and reads registers that n acceptors keep: CASPaxos.
type proposer struct {
	nodes  int
	id     string // unique in the world
	wire   wire
	reader bool // it may ask what was accepted, and nothing else

	mu      sync.Mutex
	counter uint64 // of the highest ballot that was used, or seen
	swaps   uint64
}

func (p *proposer) majority() int { return p.nodes/2 + 1 }

// ballot returns one that was never used, above all that were seen.
func (p *proposer) ballot() Ballot {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counter++
	return Ballot{Counter: p.counter, Proposer: p.id}
}

func (p *proposer) saw(b Ballot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.Counter < counterMost { // a damaged answer must not use ballots up
		p.counter = max(p.counter, b.Counter)
	}
}

// writer names a Swap.
func (p *proposer) writer() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swaps++
	return fmt.Sprintf("%s.%d", p.id, p.swaps)
}

// tally is what the acceptors said to one question.
type tally struct {
	answers []*Answer
	beaten  bool // some have promised a higher ballot
	refused Refusal
	failed  int
	err     error // the last failure
}

// gather asks all, until a majority has answered or cannot any more; then the error says why.
func (p *proposer) gather(q *Question) ([]*Answer, error) {
	var t tally
	p.wire.ask(q, func(a *Answer, err error) bool {
		p.count(&t, q, a, err)
		return len(t.answers) >= p.majority() || t.failed > p.nodes-p.majority()
	})
	switch {
	case len(t.answers) >= p.majority():
		return t.answers, nil
	case t.beaten:
		return nil, errBeaten
	case t.refused != "":
		return nil, fmt.Errorf("the pool's nodes refuse to %s %q: %s: %w", q.Kind, q.Key, t.refused,
			refusalError(t.refused))
	}
	return nil, fmt.Errorf("%d of the pool's %d nodes answered, and %d are needed: %w (the last that did not: %v)",
		len(t.answers), p.nodes, p.majority(), rdma.ErrMinority, t.err)
}

// errBeaten ends a round that a higher ballot has overtaken.
var errBeaten = fmt.Errorf("others change it at the same time: %w", ErrUnreachable)

func refusalError(r Refusal) error {
	if r == RefusedFull {
		return rdma.ErrFull
	}
	return rdma.ErrAccess
}

func (p *proposer) count(t *tally, q *Question, a *Answer, err error) {
	switch {
	case err == nil && a == nil:
		err = errors.New("an empty answer")
	case err == nil && (q.Kind == KindPrepare || q.Kind == KindPeek) && a.Promised == (Ballot{}) && a.Refusal == "" &&
		len(a.Entries) != 1:
		err = fmt.Errorf("an answer with %d entries", len(a.Entries))
	}
	switch {
	case err != nil:
		t.failed++
		t.err = err
	case a.Promised != (Ballot{}):
		t.failed++
		t.beaten = true
		p.saw(a.Promised)
	case a.Refusal != "":
		t.failed++
		t.refused = a.Refusal
	default:
		t.answers = append(t.answers, a)
	}
}

// round runs both phases with one ballot: what a majority may have accepted is replaced by what
// change makes of it. It returns what was chosen. Even what stays as it is must be accepted anew:
// as long as a minority alone has it, it may still come to nothing.
func (p *proposer) round(key string, change func(s State) State) (State, error) {
	b := p.ballot()
	promises, err := p.gather(&Question{Kind: KindPrepare, Key: key, Ballot: b})
	if err != nil {
		return State{}, err
	}
	latest := promises[0].Entries[0]
	for _, a := range promises[1:] {
		if e := a.Entries[0]; e.Ballot.Compare(latest.Ballot) > 0 {
			latest = e
		}
	}
	next := change(latest.State)
	_, err = p.gather(&Question{Kind: KindAccept, Key: key, Ballot: b, State: next})
	return next, err
}

// rounds repeats round until something is chosen, done returns true on it, or it has to give up.
func (p *proposer) rounds(key string, change func(s State) State) (State, error) {
	silent, pause := 0, backoff
	for duel := 0; ; duel++ {
		s, err := p.round(key, change)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, ErrUnreachable) {
			return State{}, err
		}
		if !errors.Is(err, errBeaten) {
			silent++
		}
		if duel+1 >= duels || silent >= silences {
			return State{}, err
		}
		p.wire.pause(pause)
		pause = min(2*pause, backoffMost)
	}
}

// load returns a register's state.
func (p *proposer) load(key string) (State, error) {
	answers, err := p.gather(&Question{Kind: KindPeek, Key: key})
	if err != nil {
		return State{}, err
	}
	if s, ok := agreed(answers, func(a *Answer) Entry { return a.Entries[0] }); ok {
		return s, nil
	}
	return p.settle(key)
}

// agreed returns the state that all answers of a majority have accepted in one ballot: it is
// chosen, and nothing later was before they were asked, since they would know.
func agreed(answers []*Answer, entry func(a *Answer) Entry) (State, bool) {
	first := entry(answers[0])
	return first.State, !slices.ContainsFunc(answers, func(a *Answer) bool { return entry(a).Ballot != first.Ballot })
}

// later reports whether some acceptor has a later version of a register, which may come to nothing.
// A majority has what was chosen before this began, so that it is in one of the answers.
func (p *proposer) later(key string, version uint64) (bool, error) {
	answers, err := p.gather(&Question{Kind: KindPeek, Key: key, Bare: true})
	return slices.ContainsFunc(answers, func(a *Answer) bool { return a.Entries[0].State.Version > version }), err
}

// settle returns the state of a register of which acceptors have different ones.
func (p *proposer) settle(key string) (State, error) {
	if !p.reader {
		return p.rounds(key, func(s State) State { return s })
	}
	for look, silent, pause := 0, 0, backoff; ; look++ {
		s, all, err := p.glance(key)
		if err == nil {
			return s, nil
		}
		if !all {
			silent++
		}
		if look+1 >= duels || silent >= glances {
			return State{}, err
		}
		p.wire.pause(pause)
		pause = min(2*pause, backoffMost)
	}
}

// glance returns a state that a majority has accepted in one ballot, even if an acceptor has a
// later one. It is chosen; and nothing later was when this began, since one of that majority would
// have it. Where there is none, because acceptors do not answer, the latest state may have been
// chosen or may come to nothing: only a round can tell, which a reader may not begin. all: every
// acceptor answered.
func (p *proposer) glance(key string) (s State, all bool, err error) {
	var t tally
	votes, found := map[Ballot]int{}, false
	q := &Question{Kind: KindPeek, Key: key}
	p.wire.ask(q, func(a *Answer, err error) bool {
		before := len(t.answers)
		if p.count(&t, q, a, err); len(t.answers) == before {
			return false
		}
		e := a.Entries[0]
		votes[e.Ballot]++
		if votes[e.Ballot] >= p.majority() {
			s, found = e.State, true
		}
		return found
	})
	if !found {
		err = fmt.Errorf("%d of the pool's %d nodes answered, and do not agree: a change was left half done, and "+
			"who may only read waits for somebody with the full token to complete it: %w", len(t.answers),
			p.nodes, ErrUnreachable)
	}
	return s, len(t.answers) == p.nodes, err
}

// swap replaces a register's state if it has the given version. Once its own state may have been
// accepted somewhere, only the writer of the next version finds out whether the swap took place.
func (p *proposer) swap(key string, version uint64, value []byte) (bool, error) {
	writer, proposed := p.writer(), false
	s, err := p.rounds(key, func(s State) State {
		if s.Version != version {
			return s
		}
		proposed = true
		return s.next(writer, value)
	})
	switch {
	case err != nil && proposed:
		return false, fmt.Errorf("%w: %w", ErrUncertain, err)
	case err != nil:
		return false, err
	case !proposed || s.Version <= version:
		return false, nil
	}
	who, known := s.writerOf(version + 1)
	if !known {
		return false, fmt.Errorf("%w, and again since then: %w", ErrUncertain, ErrUnreachable)
	}
	return who == writer, nil
}

// look returns a register's state, unless key is "", and then the registers that were written and
// whose keys begin so, none of them from before that state. Answers that agree on the one are from
// no earlier moment than that at which it was chosen, and so is what they list: of two registers
// that were written one behind the other, a majority that has accepted the second has one that has
// accepted the first.
func (p *proposer) look(key, prefix string) (first State, all []Record, err error) {
	for after, more := "", true; more; { // ends: after grows, and acceptors have so many keys
		answers, err := p.gather(&Question{Kind: KindPeekAll, Key: prefix, With: key, After: after})
		if err != nil {
			return State{}, nil, err
		}
		if key != "" {
			s, ok := agreed(answers, func(a *Answer) Entry { return a.With })
			if first = s; !ok {
				if first, err = p.settle(key); err != nil {
					return State{}, nil, err
				}
			}
			if key = ""; !ok {
				continue // they may have listed what was before
			}
		}
		var keys []string
		var end string
		if keys, end, more = page(answers); more && end <= after {
			return State{}, nil, fmt.Errorf("a node lists %q again and again: %w", after, ErrUnreachable)
		}
		after = end
		for _, key := range keys {
			s, err := p.listed(key, answers)
			if err != nil {
				return State{}, nil, err
			}
			if s.Version > 0 {
				all = append(all, Record{Key: key, Value: s.Value, Version: s.Version})
			}
		}
	}
	return first, all, nil
}

// page returns the keys of which every answer tells, and whether there are more behind the last of
// them.
func page(answers []*Answer) (keys []string, end string, more bool) {
	for _, a := range answers {
		last := ""
		for _, e := range a.Entries {
			keys = append(keys, e.Key)
			last = e.Key
		}
		if a.More && (!more || last < end) {
			end, more = last, true
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	if more {
		keys = slices.DeleteFunc(keys, func(key string) bool { return key > end })
	}
	return keys, end, more
}

// listed returns the state of a key that the answers agree on, or else asks for it.
func (p *proposer) listed(key string, answers []*Answer) (State, error) {
	var first Entry
	for i, a := range answers {
		at, ok := slices.BinarySearchFunc(a.Entries, key, func(e Entry, key string) int {
			return strings.Compare(e.Key, key)
		})
		if !ok || i > 0 && a.Entries[at].Ballot != first.Ballot {
			return p.settle(key)
		}
		first = a.Entries[at]
	}
	return first.State, nil
}
