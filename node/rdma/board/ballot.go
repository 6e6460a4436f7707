package board

import (
	"cmp"
	"fmt"
	"strings"
)

// Ballot orders the attempts to change a register. The zero Ballot is below all of them.
type Ballot struct {
	Counter  uint64 `json:"counter,omitempty"`
	Proposer string `json:"proposer,omitempty"` // unique in the world, so that no two attempts have the same ballot
}

// Compare returns -1, 0 or 1 when b is below, the same as, or above o.
func (b Ballot) Compare(o Ballot) int {
	return cmp.Or(cmp.Compare(b.Counter, o.Counter), strings.Compare(b.Proposer, o.Proposer))
}

func (b Ballot) String() string { return fmt.Sprintf("%d/%s", b.Counter, b.Proposer) }

// State is what a register holds. Its Value is never changed, only replaced.
type State struct {
	Version uint64 `json:"version,omitempty"` // 0: never written
	Writer  string `json:"writer,omitempty"`  // the Swap that made it
	Value   []byte `json:"value,omitempty"`
	// Past are the Writers of the versions before, the latest first. A Swap that was overtaken
	// finds out its outcome there.
	Past []string `json:"past,omitempty"`
}

// mostPast bounds State.Past. So many other Swaps would have to succeed between two looks of one
// that is under way.
const mostPast = 16

// next is the state that follows s.
func (s State) next(writer string, value []byte) State {
	past := make([]string, 0, mostPast)
	if s.Version > 0 {
		past = append(past, s.Writer)
	}
	past = append(past, s.Past[:min(len(s.Past), mostPast-len(past))]...)
	return State{Version: s.Version + 1, Writer: writer, Value: value, Past: past}
}

// writerOf returns the writer of the given version, which is not above s's; false: that is too long
// ago.
func (s State) writerOf(version uint64) (string, bool) {
	ago := s.Version - version
	switch {
	case ago == 0:
		return s.Writer, true
	case ago <= uint64(len(s.Past)):
		return s.Past[ago-1], true
	}
	return "", false
}

// Kind is what a Question asks.
type Kind string

// The kinds of questions.
const (
	KindPrepare Kind = "prepare" // promise to accept nothing below Ballot, and tell what was accepted
	KindAccept  Kind = "accept"  // accept State
	KindPeek    Kind = "peek"    // tell what was accepted
	// tell what was accepted of With, and of all keys that begin with Key and are greater than
	// After
	KindPeekAll Kind = "peekall"
)

// Question is what a proposer asks an acceptor; one message for all kinds.
type Question struct {
	Kind   Kind   `json:"kind"`
	Key    string `json:"key"`
	Ballot Ballot `json:"ballot,omitzero"`
	State  State  `json:"state,omitzero"`
	With   string `json:"with,omitempty"`
	After  string `json:"after,omitempty"`
	Seen   string `json:"seen,omitempty"` // of a peekall: the Mark of an answer that the asker keeps
	Bare   bool   `json:"bare,omitempty"` // of a peek: without the value
}

// Answer is what an acceptor says.
type Answer struct {
	// Promised, unless zero, refuses: the acceptor has promised that ballot, which is higher.
	Promised Ballot `json:"promised,omitzero"`
	// Refusal, unless "", refuses for good: see the constants.
	Refusal Refusal `json:"refusal,omitempty"`
	// Entries are what was accepted: of Prepare and Peek one, the zero one if nothing was; of
	// PeekAll by key.
	Entries []Entry `json:"entries,omitempty"`
	// With is what PeekAll's question is With.
	With Entry `json:"with,omitzero"`
	// More: PeekAll left entries out behind the last one.
	More bool `json:"more,omitempty"`
	// Mark names what a PeekAll tells. Same: it is what the question has Seen, and Entries and With
	// are left out.
	Mark string `json:"mark,omitempty"`
	Same bool   `json:"same,omitempty"`
}

// Entry is what an acceptor has accepted last for a key.
type Entry struct {
	Key    string `json:"key,omitempty"`
	Ballot Ballot `json:"ballot,omitzero"`
	State  State  `json:"state,omitzero"`
}

// Refusal says why an acceptor will never do what it was asked.
type Refusal string

// The refusals.
const (
	RefusedFull    Refusal = "no room for another record"
	RefusedLarge   Refusal = "record too large"
	RefusedInvalid Refusal = "invalid question"
)
