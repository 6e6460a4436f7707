package memory

// Queue is a list from which the first is taken.
type Queue[T any] struct {
	// What is before head was taken.
	list []T
	head int
}

// Len returns how many there are.
func (q *Queue[T]) Len() int { return len(q.list) - q.head }

// Items returns those that are there, in their order. They are the queue's until the next Push.
func (q *Queue[T]) Items() []T { return q.list[q.head:] }

// Push adds one. It moves the list to the front of its memory when more than half of that was
// taken, so a steady state allocates nothing.
func (q *Queue[T]) Push(x T) {
	if q.head > 64 && q.head*2 > len(q.list) {
		q.list = q.list[:copy(q.list, q.Items())]
		q.head = 0
	}
	q.list = append(q.list, x)
}

// Pop takes the first. There is one.
func (q *Queue[T]) Pop() T {
	q.head++
	return q.list[q.head-1]
}
