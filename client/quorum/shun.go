package quorum

import "time"

// shunned is how long, in units of the timer, a node that was slow or failed is asked last. If it
// does not recover, one operation in so many is slower by the timer.
const shunned = 100

// Shun makes a node be asked last for a while.
func (q *Quorum) Shun(node int) { q.shun(node, q.ep.Now()) }

func (q *Quorum) shun(node int, now time.Duration) { q.avoid.Mark(node, now+shunned*q.timer.slow) }

// Avoids reports whether a node is asked last. It looks at the clock only when there is one.
func (q *Quorum) Avoids(node int) bool { return q.avoid.Has(node, q.ep) }
