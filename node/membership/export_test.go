package membership

// Settle waits for the questions that are under way.
func (q *Quorum) Settle() { q.wg.Wait() }
