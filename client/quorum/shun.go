package quorum

import "time"

// shunned is how long a node that was slow or failed is asked last, in units of the timer: an
// operation in as many is that much slower when the node does not recover.
const shunned = 100

// Shun asks a node last for a while.
func (q *Quorum) Shun(node int) { q.shun(node, q.ep.Now()) }

func (q *Quorum) shun(node int, now time.Duration) {
	for len(q.avoid) <= node {
		q.avoid = append(q.avoid, 0)
	}
	if q.avoid[node] == 0 {
		q.avoided++
	}
	q.avoid[node] = now + shunned*q.timer.slow
}

// Avoids reports whether a node is asked last. It looks at the clock only when there is one.
func (q *Quorum) Avoids(node int) bool {
	if q.avoided == 0 || node >= len(q.avoid) || q.avoid[node] == 0 {
		return false
	}
	if q.ep.Now() < q.avoid[node] {
		return true
	}
	q.avoid[node] = 0
	q.avoided--
	return false
}
