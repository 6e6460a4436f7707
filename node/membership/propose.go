package membership

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const (
	// maxConflicts bounds the rounds of one call that fail because another proposer's ballot is
	// higher, and the looks of a reader. The pauses between them take 0.6 s on average.
	maxConflicts = 24
	// maxNoQuorum bounds the rounds of one call in which no majority answers. They take long, as
	// the transport waits for its own time each; the caller decides whether to try again.
	maxNoQuorum = 2
	// maxReadTries bounds the looks of a reader to which not all acceptors answer, and in which no
	// majority agrees.
	maxReadTries = 4
	// backoff is the bound of the first random pause between two rounds. It doubles with each
	// round, up to backoffMost.
	backoff     = time.Millisecond
	backoffMost = 64 * time.Millisecond
)

// ErrUncertain is wrapped, beside ErrUnreachable, when a Swap may have happened or may still
// happen. The caller loads the record to find out; what it finds may still change by that Swap
// while the version is the old one.
var ErrUncertain = errors.New("the record may have been replaced")

// wire is a proposer's only way to the acceptors, to time and to chance. So a simulation of
// messages replaces it, see the tests.
type wire interface {
	// ask puts a question to every acceptor. It calls take with each answer or failure, one at a
	// time, until take returns true or all have answered or failed. An acceptor may get the
	// question after ask has returned. So the question, and the values in it, never change. The
	// answer to a PeekAll is the whole list, sorted by key, as the acceptor had it at one moment of
	// the call: see relisting.
	ask(q *Question, take func(a *Answer, err error) (enough bool))
	// pause waits a random time below d.
	pause(d time.Duration)
}

// proposer changes and reads registers that n acceptors keep, by CASPaxos (Rystsov 2018, section
// 2.2): a round prepares a ballot at a majority, applies a change to the latest state that the
// promises show, and has a majority accept the result with the same ballot.
//
// What it relies on: no two rounds use one ballot; two majorities have an acceptor in common; an
// acceptor never forgets what it promised or accepted.
type proposer struct {
	// nodes is the number of acceptors. It never changes.
	nodes int
	// id is part of each ballot and each writer's name. No other proposer ever had it: it is
	// random.
	id   string
	wire wire
	// reader: acceptors do not let it prepare or accept. It may only ask what was accepted.
	reader bool

	// mu protects the fields below.
	mu sync.Mutex
	// counter is that of the highest ballot that this proposer used or has seen in a refusal.
	counter uint64
	// swaps counts Swaps, for their names.
	swaps uint64
}

// majority returns the size of a quorum: any two have an acceptor in common.
func (p *proposer) majority() int { return p.nodes/2 + 1 }

// ballot returns a ballot that was never used, above all that were seen.
func (p *proposer) ballot() Ballot {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counter++
	return Ballot{Counter: p.counter, Proposer: p.id}
}

// saw notes a ballot that an acceptor promised to another proposer, so that the next round's is
// above it.
func (p *proposer) saw(b Ballot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.Counter < counterMost { // a damaged answer must not leave this proposer without ballots
		p.counter = max(p.counter, b.Counter)
	}
}

// writer returns a name for a Swap that no other Swap has.
func (p *proposer) writer() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swaps++
	return fmt.Sprintf("%s.%d", p.id, p.swaps)
}

// tally is what the acceptors said to one question. Each of them is in answers or in failed.
type tally struct {
	// answers are those that do what the question asks.
	answers []*Answer
	// beaten: an acceptor has promised a higher ballot.
	beaten bool
	// refused is the last refusal.
	refused Refusal
	// failed counts the acceptors that refused, or of which no valid answer came.
	failed int
	// err is the last failure of the transport, or the last invalid answer.
	err error
}

// gather asks all acceptors, until a majority has answered or no majority can answer any more. Then
// it returns an error: errBeaten if an acceptor has promised a higher ballot, the refusal if one
// refused, and else one that wraps rdma.ErrMinority.
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

// refusalError returns the error that callers test for.
func refusalError(r Refusal) error {
	if r == RefusedFull {
		return rdma.ErrFull
	}
	return rdma.ErrAccess
}

// count adds what one acceptor said. Answers come from the network: one that lacks what the
// question asks for counts as a failure, so that the callers of gather find an entry in each answer
// to a Prepare or a Peek.
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

// round runs both phases with one ballot, and returns the state that was chosen: change of the
// latest state that a majority may have accepted.
//
//  1. Prepare. A majority promises to accept nothing below this ballot. A state that was chosen
//     before is accepted by one of that majority, and it is the one with the highest ballot. A
//     crash behind this phase leaves promises only: they stop lower ballots, and no state.
//  2. Accept. When a majority has accepted, the state is chosen. A crash before that leaves it at a
//     minority: a later round may find it there, and complete it, or may not, and replace it.
//
// A state that change leaves as it is must be accepted anew, too: while only a minority has it, a
// later round may miss it, so that it would be returned here and never have been chosen.
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

// rounds repeats round until a state is chosen, or one of the bounds is reached, or acceptors
// refuse for good. Random pauses let one of two proposers that outbid each other complete its
// round. change may be called several times, and what it made may be accepted although its round
// failed.
func (p *proposer) rounds(key string, change func(s State) State) (State, error) {
	silent, pause := 0, backoff
	for conflict := 0; ; conflict++ {
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
		if conflict+1 >= maxConflicts || silent >= maxNoQuorum {
			return State{}, err
		}
		p.wire.pause(pause)
		pause = min(2*pause, backoffMost)
	}
}

// load returns a register's state: in one trip if all answers of a majority agree, and else by
// rounds that complete or replace what was left.
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

// agreed returns the state that all answers of a majority have accepted in one ballot. That state
// is chosen. No later state was chosen before the question was asked: one of this majority would
// have accepted it. It reports false if the answers have different ballots.
func agreed(answers []*Answer, entry func(a *Answer) Entry) (State, bool) {
	first := entry(answers[0])
	return first.State, !slices.ContainsFunc(answers, func(a *Answer) bool { return entry(a).Ballot != first.Ballot })
}

// later reports whether an acceptor has accepted a later version of a register. That version may
// never be chosen. A version that was chosen before the call began is in one of the answers, so
// none is missed. The answers have no values, which may be long.
func (p *proposer) later(key string, version uint64) (bool, error) {
	answers, err := p.gather(&Question{Kind: KindPeek, Key: key, Bare: true})
	return slices.ContainsFunc(answers, func(a *Answer) bool { return a.Entries[0].State.Version > version }), err
}

// settle returns the state of a register of which acceptors have different states. A proposer that
// may write completes one of them by a round. A reader looks again until a majority agrees.
func (p *proposer) settle(key string) (State, error) {
	if !p.reader {
		return p.rounds(key, func(s State) State { return s })
	}
	for look, silent, pause := 0, 0, backoff; ; look++ {
		s, all, err := p.readChosen(key)
		if err == nil {
			return s, nil
		}
		if !all {
			silent++
		}
		if look+1 >= maxConflicts || silent >= maxReadTries {
			return State{}, err
		}
		p.wire.pause(pause)
		pause = min(2*pause, backoffMost)
	}
}

// readChosen returns a state that a majority has accepted in one ballot, even if an acceptor has a
// later one. That state is chosen, and no later one was chosen when readChosen began: one of that
// majority would have accepted it.
//
// If no majority agrees it returns an error. Then the latest state may have been chosen, or may
// never be: only a round can decide that, which a reader may not begin. all reports whether every
// acceptor answered. If all did, a round is under way, and another look may succeed soon.
func (p *proposer) readChosen(key string) (s State, all bool, err error) {
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
			"a client that may only read waits until one with the full token completes it: %w", len(t.answers), p.nodes,
			ErrUnreachable)
	}
	return s, len(t.answers) == p.nodes, err
}

// swap replaces a register's state if it has the given version, and reports whether it did.
//
// A round that failed may have left this Swap's state at a minority, and another proposer may have
// completed it since. So the version that a later round finds does not tell whether the Swap took
// place: the name of the writer of version+1 does. A state keeps the writers of its last mostPast
// versions. If the register was replaced more often meanwhile, the outcome stays unknown:
// ErrUncertain.
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
	made, known := s.writerOf(version + 1)
	if !known {
		return false, fmt.Errorf("%w, and again since then: %w", ErrUncertain, ErrUnreachable)
	}
	return made == writer, nil
}

// look returns a register's state, unless key is "", and the written registers of which the keys
// begin with prefix, none of them from before that state.
//
// Each answer has the state of key and a list, of one moment. If all answers of a majority agree on
// key's state, each was given after its acceptor had accepted that state. A register that was
// written before key's state was has been accepted by a majority by then, and one of the answers
// lists it. If the answers do not agree, key is settled by rounds. The list is asked for again
// then, because it may be older than the state.
func (p *proposer) look(key, prefix string) (first State, all []Record, err error) {
	q := &Question{Kind: KindPeekAll, Key: prefix, With: key}
	answers, err := p.gather(q)
	if err != nil {
		return State{}, nil, err
	}
	if key != "" {
		var ok bool
		if first, ok = agreed(answers, func(a *Answer) Entry { return a.With }); !ok {
			if first, err = p.settle(key); err != nil {
				return State{}, nil, err
			}
			if answers, err = p.gather(q); err != nil {
				return State{}, nil, err
			}
		}
	}
	lists := make([][]Entry, len(answers))
	for i, a := range answers {
		lists[i] = a.Entries
	}
	for slices.ContainsFunc(lists, func(l []Entry) bool { return len(l) > 0 }) {
		e, same := take(lists)
		if !same {
			if e.State, err = p.settle(e.Key); err != nil {
				return State{}, nil, err
			}
		}
		if e.State.Version > 0 {
			all = append(all, Record{Key: e.Key, Value: e.State.Value, Version: e.State.Version})
		}
	}
	return first, all, nil
}

// take takes the first key out of lists that are sorted by key, and are not all empty. It reports
// whether all of them have it, accepted in the same ballot: then it returns what was accepted. A
// list without the key is of an acceptor that has accepted nothing for it.
func take(lists [][]Entry) (e Entry, same bool) {
	for _, l := range lists {
		if len(l) > 0 && (e.Key == "" || l[0].Key < e.Key) {
			e = l[0]
		}
	}
	same = true
	for i, l := range lists {
		if len(l) == 0 || l[0].Key != e.Key {
			same = false
			continue
		}
		same = same && l[0].Ballot == e.Ballot
		lists[i] = l[1:]
	}
	return e, same
}
