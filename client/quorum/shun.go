package quorum

import "time"

// shunned is how long a node that was slow or failed is asked last, in units of the timer: an
// operation in as many is that much slower when the node does not recover.
const shunned = 100

// Shun asks a node last for a while.
func (q *Quorum) Shun(node int) { q.shun(node, q.ep.Now()) }

func (q *Quorum) shun(node int, now time.Duration) { q.avoid.Mark(node, now+shunned*q.timer.slow) }

// Avoids reports whether a node is asked last. It looks at the clock only when there is one.
func (q *Quorum) Avoids(node int) bool { return q.avoid.Has(node, q.ep) }
