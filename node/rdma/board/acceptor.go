package board

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"github.com/farkv/farkv/node/rdma"
)

// Limits bound what an Acceptor keeps: a node must not allocate more than it was told to.
type Limits struct {
	Keys  int // number of keys
	Key   int // bytes of one key
	Value int // bytes of one value
	Bytes int // of all, see slotBytes
}

const (
	slotBytes   = 2 << 10   // counted for a slot beside key and value: its ballots, its writers, its place in the map
	nameBytes   = 64        // of a proposer or a writer, at most
	pageBytes   = 256 << 10 // of entries in the answer to PeekAll, about
	counterMost = 1 << 62   // of a ballot: no correct proposer comes near it, and above there must be room
)

// configBytes is the longest record of a configuration, which is base64 in JSON.
const configBytes = rdma.MaxConfig*4/3 + 1<<10

// LimitsFor returns what the board of a pool needs: the view, the master, the store's
// configuration, the clients, and some keys to spare for what a fabric notes of the pool itself.
func LimitsFor(nodes, clients int) Limits {
	const few = 16           // keys beside the clients'
	view := 4<<10 + 64*nodes // bytes of what they hold, but for the configuration
	l := Limits{Keys: clients + few, Key: 64, Value: max(view, configBytes)}
	l.Bytes = clients*(slotBytes+1<<10) + few*(slotBytes+l.Key+view) + configBytes
	return l
}

// Acceptor is a memory node's part in keeping registers. It only computes: the caller brings it
// questions, one at a time, and takes its answers to the proposers that asked. It must not answer
// again after it has lost what it had promised.
type Acceptor struct {
	limits Limits
	slots  map[string]*slot
	bytes  int

	life    string // differs from that of any other acceptor, its own earlier lives included
	accepts uint64
}

// slot is one register as this acceptor knows it.
type slot struct {
	promised Ballot
	accepted Ballot
	at       uint64 // Acceptor.accepts then
	state    State
}

// NewAcceptor returns one that has promised nothing.
func NewAcceptor(l Limits) *Acceptor {
	return &Acceptor{limits: l, slots: map[string]*slot{}, life: rand.Text()}
}

// Answer answers any question, those of strangers too.
func (a *Acceptor) Answer(q *Question) *Answer {
	if q == nil {
		return refuse(RefusedInvalid)
	}
	switch q.Kind {
	case KindPrepare:
		return a.Prepare(q.Key, q.Ballot)
	case KindAccept:
		return a.Accept(q.Key, q.Ballot, q.State)
	case KindPeek:
		answer := a.Peek(q.Key)
		if q.Bare {
			answer.Entries[0].State.Value = nil
		}
		return answer
	case KindPeekAll:
		return a.PeekAll(q.Key, q.With, q.After, q.Seen)
	}
	return refuse(RefusedInvalid)
}

func refuse(r Refusal) *Answer { return &Answer{Refusal: r} }

// slot returns the register of a key, made if there is room for another.
func (a *Acceptor) slot(key string, b Ballot) (*slot, Refusal) {
	if b.Counter == 0 || b.Counter > counterMost || b.Proposer == "" || len(b.Proposer) > nameBytes {
		return nil, RefusedInvalid
	}
	if s := a.slots[key]; s != nil {
		return s, ""
	}
	size := slotBytes + len(key)
	switch {
	case len(key) > a.limits.Key:
		return nil, RefusedLarge
	case len(a.slots) >= a.limits.Keys || a.bytes+size > a.limits.Bytes:
		return nil, RefusedFull
	}
	s := &slot{}
	a.slots[strings.Clone(key)] = s
	a.bytes += size
	return s, ""
}

// Promise is what an acceptor must not forget of one register.
type Promise struct {
	Key      string `json:"key"`
	Promised Ballot `json:"promised"`
	Accepted Ballot `json:"accepted,omitzero"`
	State    State  `json:"state,omitzero"`
}

// Promise returns what was promised and accepted of a register; false: nothing was. An acceptor
// that is to outlive its process keeps it before it answers a Prepare or an Accept.
func (a *Acceptor) Promise(key string) (Promise, bool) {
	s := a.slots[key]
	if s == nil {
		return Promise{}, false
	}
	return Promise{key, s.promised, s.accepted, s.state}, true
}

// Restore has a new acceptor know a promise that it made in an earlier life.
func (a *Acceptor) Restore(p Promise) {
	a.slots[p.Key] = &slot{promised: p.Promised, accepted: p.Accepted, state: p.State}
	a.bytes += slotBytes + len(p.Key) + len(p.State.Value)
}

// Prepare promises to accept nothing below b, and returns what was accepted last. It may be
// repeated.
func (a *Acceptor) Prepare(key string, b Ballot) *Answer {
	s, refusal := a.slot(key, b)
	if refusal != "" {
		return refuse(refusal)
	}
	if b.Compare(s.promised) < 0 {
		return &Answer{Promised: s.promised}
	}
	s.promised = b
	return s.answer()
}

func (s *slot) answer() *Answer {
	return &Answer{Entries: []Entry{{Ballot: s.accepted, State: s.state}}}
}

// Accept makes state the register's, unless a higher ballot was promised. It keeps state's value.
func (a *Acceptor) Accept(key string, b Ballot, state State) *Answer {
	long := func(name string) bool { return len(name) > nameBytes }
	if len(state.Value) > a.limits.Value || len(state.Past) > mostPast || long(state.Writer) ||
		slices.ContainsFunc(state.Past, long) {
		return refuse(RefusedLarge)
	}
	s, refusal := a.slot(key, b)
	if refusal != "" {
		return refuse(refusal)
	}
	if b.Compare(s.promised) < 0 {
		return &Answer{Promised: s.promised}
	}
	more := len(state.Value) - len(s.state.Value)
	if more > 0 && a.bytes+more > a.limits.Bytes {
		return refuse(RefusedFull)
	}
	a.bytes += more
	a.accepts++
	s.promised, s.accepted, s.at, s.state = b, b, a.accepts, state
	return &Answer{}
}

// Peek returns what was accepted last, and promises nothing.
func (a *Acceptor) Peek(key string) *Answer {
	if s := a.slots[key]; s != nil {
		return s.answer()
	}
	return (&slot{}).answer()
}

// PeekAll returns what was accepted of keys that begin with prefix and are greater than after, in
// their order, as far as an answer holds it, and of the key with. What one answer holds has a mark:
// a question that has seen it is answered by that.
func (a *Acceptor) PeekAll(prefix, with, after, seen string) *Answer {
	var keys []string
	latest := uint64(0)
	for key, s := range a.slots {
		if s.accepted == (Ballot{}) {
			continue
		}
		listed := strings.HasPrefix(key, prefix) && key > after
		if listed {
			keys = append(keys, key)
		}
		if listed || key == with {
			latest = max(latest, s.at)
		}
	}
	answer, size := &Answer{}, 0
	if after == "" {
		answer.Mark = fmt.Sprintf("%s.%d", a.life, latest)
	}
	if answer.Mark != "" && answer.Mark == seen {
		answer.Same = true
		return answer
	}
	if s := a.slots[with]; s != nil {
		answer.With = Entry{Ballot: s.accepted, State: s.state}
	}
	slices.Sort(keys)
	for _, key := range keys {
		s := a.slots[key]
		if size > pageBytes {
			answer.More, answer.Mark = true, ""
			break
		}
		size += slotBytes + len(key) + len(s.state.Value)
		answer.Entries = append(answer.Entries, Entry{Key: key, Ballot: s.accepted, State: s.state})
	}
	return answer
}
