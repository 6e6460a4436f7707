// Package snapshot has the rules of the SNAPSHOT protocol (FUSEE 4.3 and 5.2) as functions of what
// the replicas of a slot hold. Writers, recovery and masters use the same ones, so that they agree
// on a round's winner.
package snapshot

import (
	"slices"

	"github.com/farkv/farkv/client/race"
)

// Rule is what Algorithm 2 returns: by which rule a writer has won its round, or that it has not.
type Rule uint8

const (
	Lose   Rule = iota // another writer wins the round
	Rule1              // all backups took our word
	Rule2              // a majority did
	Rule3              // no majority, and ours is the least word
	Finish             // the round is over: the primary changed
)

// Winner returns the word that wins a round, and the rule of Algorithm 2 by which it does.
// The list has the words to which the backups were first changed in the round. Rule 3 holds only
// as long as the primary has its old word.
//
// In a round of INSERTs a word that is not pending is the final word or the tombstone of the
// round's winner. The list is no longer the one by which it won then. Only recovery gets here
// with such a list: a writer has lost then.
//
// All writers of a round compute the same winner, in whatever order their CASes came. Under rules 1
// and 2 no other word can have a majority of the same list. Under rule 3 they differ in nothing but
// which word is theirs: the list is complete, since each of them has seen all of its CASes fail or
// succeed.
func Winner(list []race.Word) (race.Word, Rule) {
	second := slices.IndexFunc(list, func(w race.Word) bool { return !w.IsPending() })
	if second >= 0 && slices.ContainsFunc(list, race.Word.IsPending) {
		return list[second], Rule1
	}
	switch majority, count := mostFrequent(list); {
	case count == len(list):
		return majority, Rule1
	case 2*count > len(list):
		return majority, Rule2
	}
	return slices.Min(list), Rule3
}

// mostFrequent returns the word that is most often in the list, and how often. Of several it
// takes the first.
func mostFrequent(list []race.Word) (most race.Word, count int) {
	for _, v := range list {
		n := 0
		for _, u := range list {
			if u == v {
				n++
			}
		}
		if n > count {
			most, count = v, n
		}
	}
	return most, count
}

// Choose returns the word that all replicas of a slot get, by the rules of Mend. It is not ok
// when that is a tombstone, which the caller makes.
func Choose(words []race.Word) (w race.Word, ok bool) {
	if others := words[1:]; len(others) > 0 && !others[0].IsPending() {
		same := !slices.ContainsFunc(others, func(o race.Word) bool { return o != others[0] })
		if same {
			return others[0], true
		}
	}
	for _, w := range words {
		if !w.IsPending() {
			return w, true
		}
	}
	return 0, false
}
