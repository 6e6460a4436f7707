package membership

import (
	"cmp"
	"fmt"
	"strings"
)

// Ballot orders the attempts to change a register. No two attempts have the same. The zero Ballot
// is below all of them: it is that of a register that was never accepted.
type Ballot struct {
	// Counter is at least 1 in an attempt's ballot, and at most counterMost.
	Counter uint64 `json:"counter,omitempty"`
	// Proposer is the random name of a proposer. It orders ballots with the same counter.
	Proposer string `json:"proposer,omitempty"`
}

// Compare returns -1, 0 or 1 when b is below, the same as, or above o.
func (b Ballot) Compare(o Ballot) int {
	return cmp.Or(cmp.Compare(b.Counter, o.Counter), strings.Compare(b.Proposer, o.Proposer))
}

func (b Ballot) String() string { return fmt.Sprintf("%d/%s", b.Counter, b.Proposer) }

// State is what a register holds. The bytes of its Value never change: acceptors, questions and
// answers share them.
type State struct {
	// Version is one more with each Swap; 0: the register was never written. Rounds that accept the
	// same state anew do not change it.
	Version uint64 `json:"version,omitempty"`
	// Writer is the name of the Swap that made this version.
	Writer string `json:"writer,omitempty"`
	Value  []byte `json:"value,omitempty"`
	// Past are the Writers of the versions before, the latest first, at most mostPast. A Swap finds
	// out there whether it made a version that was replaced since.
	Past []string `json:"past,omitempty"`
}

// mostPast bounds State.Past. A Swap does not find out its outcome if more other Swaps of the
// register than that succeed between two of its rounds.
const mostPast = 16

// next returns the state that follows s. It shares nothing with s that changes.
func (s State) next(writer string, value []byte) State {
	past := make([]string, 0, mostPast)
	if s.Version > 0 {
		past = append(past, s.Writer)
	}
	past = append(past, s.Past[:min(len(s.Past), mostPast-len(past))]...)
	return State{Version: s.Version + 1, Writer: writer, Value: value, Past: past}
}

// writerOf returns the writer of the given version, which is at least 1 and not above s's. It
// reports false if that version is too long ago.
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
	KindPrepare Kind = "prepare" // promise to accept nothing below Ballot, and return what was accepted
	KindAccept  Kind = "accept"  // accept State
	KindPeek    Kind = "peek"    // return what was accepted
	// return what was accepted for With, and for all keys that begin with Key, unless Seen has it
	KindPeekAll Kind = "peekall"
)

// Question is what a proposer asks an acceptor. One message serves all kinds. It never changes once
// it was handed to a Transport.
type Question struct {
	Kind Kind `json:"kind"`
	// Key is the register's, or the prefix of a peekall.
	Key string `json:"key"`
	// Ballot is that of a prepare or an accept.
	Ballot Ballot `json:"ballot,omitzero"`
	// State is what an accept proposes.
	State State `json:"state,omitzero"`
	// With is a key of which a peekall returns the entry beside the listed ones.
	With string `json:"with,omitempty"`
	// Seen is the Mark of an earlier answer to the same peekall. The asker has that, and what
	// it says was seen before it.
	Seen string `json:"seen,omitempty"`
	// Bare asks a peek to leave out the value.
	Bare bool `json:"bare,omitempty"`
}

// Answer is what an acceptor answers to a Question.
type Answer struct {
	// Promised, unless zero, refuses: the acceptor has promised that ballot, which is higher than
	// the question's.
	Promised Ballot `json:"promised,omitzero"`
	// Refusal, unless "", refuses for good: see the constants.
	Refusal Refusal `json:"refusal,omitempty"`
	// Entries are what was accepted. Prepare and Peek have one, which is zero if nothing was
	// accepted. PeekAll has one for each key, in the order in which they were accepted.
	Entries []Entry `json:"entries,omitempty"`
	// With is what was accepted for the With of a PeekAll's question.
	With Entry `json:"with,omitzero"`
	// More: PeekAll left out entries. A question that has Seen this Mark is answered by them.
	More bool `json:"more,omitempty"`
	// Mark names the moment of a PeekAll's answer.
	Mark string `json:"mark,omitempty"`
	// Since is the question's Seen: what was accepted before that Mark is left out. Or it is "":
	// the entries are all that were accepted, since the mark is not this acceptor's.
	Since string `json:"since,omitempty"`
}

// Entry is what an acceptor has accepted last for a key. A chosen state is in the entries of a
// majority; the entry of one acceptor alone may never be chosen.
type Entry struct {
	Key    string `json:"key,omitempty"`
	Ballot Ballot `json:"ballot,omitzero"`
	State  State  `json:"state,omitzero"`
}

// Refusal says why an acceptor will never do what a question asks.
type Refusal string

// The refusals.
const (
	RefusedFull    Refusal = "no room for another record"
	RefusedLarge   Refusal = "record too large"
	RefusedInvalid Refusal = "invalid question"
)
