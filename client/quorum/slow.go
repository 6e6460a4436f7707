package quorum

// slowFor is how long, in units of the timer, a node that was slow or failed is asked last. If it
// does not recover, one operation in so many is slower by the timer.
const slowFor = 100

// MarkSlow makes a node be asked last for a while.
func (q *Quorum) MarkSlow(node int) { q.avoid.Mark(node, q.ep.Now()+slowFor*q.timer.slow) }

// IsSlow reports whether a node is asked last. It looks at the clock only when there is one. It is
// a hint: nodes that are slow are asked all the same where too few others are left.
func (q *Quorum) IsSlow(node int) bool { return q.avoid.Has(node, q.ep) }
