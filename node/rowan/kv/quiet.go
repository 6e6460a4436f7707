package kv

import "sync/atomic"

// quiet lets cleaners know when nothing reads the entries that they have moved, as in epoch-based
// reclamation. A cleaner asks a question, which is a number. Each reader, a task that looks entries
// up and then reads them, passes the question once it holds none that it looked up before it saw
// the question.
type quiet struct {
	// The last question.
	asked atomic.Uint64
	// By reader, the last question that it has passed.
	passed []atomic.Uint64
}

// ask asks a new question, and returns it.
func (q *quiet) ask() uint64 { return q.asked.Add(1) }

// last returns the last question that was asked.
func (q *quiet) last() uint64 { return q.asked.Load() }

// pass notes that a reader holds no entry that it looked up before it saw a question.
func (q *quiet) pass(reader int, question uint64) { q.passed[reader].Store(question) }

// of returns the last question that a reader has passed.
func (q *quiet) of(reader int) uint64 { return q.passed[reader].Load() }

// all reports whether all readers have passed a question: what was moved before it was asked is not
// read any more.
func (q *quiet) all(question uint64) bool {
	for i := range q.passed {
		if q.of(i) < question {
			return false
		}
	}
	return true
}
