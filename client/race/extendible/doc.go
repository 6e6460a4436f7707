// Package extendible is RACE hashing (ATC 2021): extendible hashing by one-sided
// verbs, with a rehash that is a repairable transaction (rTX, section 5).
// README.md has the protocol, what each step relies on, and what a crash behind
// it leaves.
package extendible
