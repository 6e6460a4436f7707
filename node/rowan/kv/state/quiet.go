package state

import "sync/atomic"

// Quiet lets cleaners know when nothing reads the entries that they have moved, as in epoch-based
// reclamation. A cleaner asks a question, which is a number. Each reader, a task that looks entries
// up and then reads them, passes the question once it holds none that it looked up before it saw
// the question.
type Quiet struct {
	// The last question.
	asked atomic.Uint64
	// By reader, the last question that it has passed.
	Passed []atomic.Uint64
}

// Ask asks a new question, and returns it.
func (q *Quiet) Ask() uint64 { return q.asked.Add(1) }

// Last returns the last question that was asked.
func (q *Quiet) Last() uint64 { return q.asked.Load() }

// Pass notes that a reader holds no entry that it looked up before it saw a question.
func (q *Quiet) Pass(reader int, question uint64) { q.Passed[reader].Store(question) }

// Of returns the last question that a reader has passed.
func (q *Quiet) Of(reader int) uint64 { return q.Passed[reader].Load() }

// All reports whether all readers have passed a question: what was moved before it was asked is not
// read any more.
func (q *Quiet) All(question uint64) bool {
	for i := range q.Passed {
		if q.Of(i) < question {
			return false
		}
	}
	return true
}
