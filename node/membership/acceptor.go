package membership

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/farkv/farkv/node/rdma"
)

// Limits bound what an Acceptor keeps, whatever it is asked: a node must not allocate more memory
// than it was configured for.
type Limits struct {
	Keys  int // number of keys
	Key   int // bytes of one key
	Value int // bytes of one value
	Bytes int // bytes of all slots, counted as slotBytes says
}

const (
	// slotBytes is counted for each slot beside its key and value: for its ballots, its writers'
	// names and its entry in the map.
	slotBytes = 2 << 10
	// nameBytes bounds the name of a proposer or a writer.
	nameBytes = 64
	// pageBytes is about how many bytes of entries an answer to PeekAll has, of which it has one
	// more at most. entryBytes is counted for each entry beside its key and value.
	pageBytes  = 256 << 10
	entryBytes = 256
	// counterMost bounds a ballot's counter. No correct proposer comes near it. A wrong question
	// with a greater one would leave no room for higher ballots.
	counterMost = 1 << 62
)

// configBytes bounds the record of a configuration in bytes. The data is base64 in JSON: 4 bytes
// for each 3.
const configBytes = rdma.MaxConfig*4/3 + 1<<10

// LimitsFor returns what the registry of a pool needs: the view, the master, the store's
// configuration, the clients, and some keys to spare for what a fabric notes of the pool itself.
// Only one record may be as long as a configuration.
func LimitsFor(nodes, clients int) Limits {
	const few = 16           // keys beside the clients'
	view := 4<<10 + 64*nodes // bytes of what they hold, but for the configuration
	l := Limits{Keys: clients + few, Key: 64, Value: max(view, configBytes)}
	l.Bytes = clients*(slotBytes+1<<10) + few*(slotBytes+l.Key+view) + configBytes
	return l
}

// Acceptor is a memory node's part in keeping registers (CASPaxos, section 2.2). It only computes:
// the caller brings it questions, one at a time, and carries its answers to the proposers that
// asked. It must not answer any question after it has lost what it had promised.
type Acceptor struct {
	limits Limits
	// slots are the registers that a proposer has prepared or written, by key. None is removed.
	slots map[string]*slot
	// bytes is the size of all slots, at most limits.Bytes.
	bytes int

	// life differs from that of any other acceptor, and of this node's earlier acceptors. So does
	// each Mark.
	life string
	// accepts counts accepted and restored states.
	accepts uint64
	// page is pageBytes, but in tests.
	page int
}

// slot is one register as this acceptor knows it.
type slot struct {
	// promised is the highest ballot that was prepared or accepted. It is never below accepted.
	promised Ballot
	// accepted is the ballot of state; zero: nothing was accepted.
	accepted Ballot
	// at is the value of Acceptor.accepts when state was accepted, or restored; 0: neither.
	at    uint64
	state State
}

// NewAcceptor returns an Acceptor that has promised nothing.
func NewAcceptor(l Limits) *Acceptor {
	return &Acceptor{limits: l, slots: map[string]*slot{}, life: rand.Text(), page: pageBytes}
}

// Answer answers any question. Questions come from the network: invalid ones are refused.
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
		return a.PeekAll(q.Key, q.With, q.Seen)
	}
	return refuse(RefusedInvalid)
}

func refuse(r Refusal) *Answer { return &Answer{Refusal: r} }

// slot returns the register of a key. It makes one if there is none, and refuses if there is no
// room for it or if the ballot is invalid.
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

// Promise is what an acceptor must not forget of one register. A node that keeps promises on
// storage writes it before the answer leaves.
type Promise struct {
	Key      string `json:"key"`
	Promised Ballot `json:"promised"`
	Accepted Ballot `json:"accepted,omitzero"`
	State    State  `json:"state,omitzero"`
}

// Promise returns what was promised and accepted of a register. It reports false if nothing was. If
// the acceptor is to survive its process, the caller stores the promise before it sends the answer
// to a Prepare or an Accept: a crash between the two loses an answer, and no promise.
func (a *Acceptor) Promise(key string) (Promise, bool) {
	s := a.slots[key]
	if s == nil {
		return Promise{}, false
	}
	return Promise{key, s.promised, s.accepted, s.state}, true
}

// Restore gives a new acceptor a promise that it made in an earlier life. All promises are restored
// before the first question is answered.
func (a *Acceptor) Restore(p Promise) {
	a.accepts++
	a.slots[p.Key] = &slot{promised: p.Promised, accepted: p.Accepted, at: a.accepts, state: p.State}
	a.bytes += slotBytes + len(p.Key) + len(p.State.Value)
}

// Prepare promises to accept nothing below b, and returns what was accepted last. It refuses if a
// higher ballot was promised. The same question may come again: it has the same answer, unless a
// higher ballot came between.
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

// answer returns what was accepted last. Its value is shared with the slot.
func (s *slot) answer() *Answer {
	return &Answer{Entries: []Entry{{Ballot: s.accepted, State: s.state}}}
}

// Accept makes state the register's, unless a higher ballot was promised or there is no room. The
// acceptor owns state's value from then on. An accept is a promise of its ballot, too: Paxos relies
// on it when the acceptor did not get the Prepare.
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

// Peek returns what was accepted last, and promises nothing. It makes no slot.
func (a *Acceptor) Peek(key string) *Answer {
	if s := a.slots[key]; s != nil {
		return s.answer()
	}
	return (&slot{}).answer()
}

// PeekAll returns what was accepted for the keys that begin with prefix, and for the key with. An
// answer to a question that has seen a mark of this acceptor leaves out what was accepted before
// that mark. So an asker that puts answer upon answer has what the acceptor had at the moment of
// the last one, and a list costs no more than what has changed of it.
//
// An answer has about pageBytes. What it leaves out was accepted later than what it has, and its
// mark says so: More follows behind that.
func (a *Acceptor) PeekAll(prefix, with, seen string) *Answer {
	answer := &Answer{Mark: a.mark(a.accepts)}
	if s := a.slots[with]; s != nil {
		answer.With = s.brief("")
	}
	from := uint64(0)
	if life, at, ok := strings.Cut(seen, "."); ok && life == a.life {
		if n, err := strconv.ParseUint(at, 10, 64); err == nil {
			answer.Since, from = seen, n
		}
	}
	if from >= a.accepts {
		return answer
	}
	var entries []Entry
	at := map[string]uint64{}
	for key, s := range a.slots {
		if s.at > from && s.accepted != (Ballot{}) && strings.HasPrefix(key, prefix) {
			entries = append(entries, s.brief(key))
			at[key] = s.at
		}
	}
	slices.SortFunc(entries, func(x, y Entry) int { return cmp.Compare(at[x.Key], at[y.Key]) })
	size := 0
	for i, e := range entries {
		if size > a.page {
			answer.More, answer.Mark = true, a.mark(at[entries[i-1].Key])
			entries = entries[:i]
			break
		}
		size += entryBytes + len(e.Key) + len(e.State.Value)
	}
	answer.Entries = entries
	return answer
}

// brief returns what a list has of a register. The names of its writers are left out.
func (s *slot) brief(key string) Entry {
	return Entry{Key: key, Ballot: s.accepted, State: State{Version: s.state.Version, Value: s.state.Value}}
}

// mark names a moment of this acceptor: when it had accepted so many states.
func (a *Acceptor) mark(accepts uint64) string { return fmt.Sprintf("%s.%d", a.life, accepts) }
