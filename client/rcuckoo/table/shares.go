package table

// GrowShare is how many neighbouring rows an INSERT divides for others. Each takes two steps of
// one redo.
const GrowShare = MaxSteps / 2

// sharesALock is how many shares have a lock in common. If they were handed out one behind the
// other, all INSERTs would wait for the same lock. So the shares of a segment are handed out in
// rounds, and a round has one share of each lock.
func (l *Layout) sharesALock() uint64 { return uint64(l.RowsPerLock+GrowShare-1) / GrowShare }

// shares returns how many shares a round has, and how many a segment has. Some of the last ones
// may be empty.
func (l *Layout) shares() (round, segment uint64) {
	all, rounds := uint64(l.Rows+GrowShare-1)/GrowShare, l.sharesALock()
	round = (all + rounds - 1) / rounds
	return round, round * rounds
}

// shareOf returns the share that has a row. The row's segment is older than the level that is
// handed out.
func (l *Layout) shareOf(id uint32) uint64 {
	// Groups of GrowShare rows are numbered along the segment. Group at is in round at%rounds, so
	// neighbouring groups, which share a lock, are in different rounds.
	round, segment := l.shares()
	at, rounds := uint64(l.Number(id))/GrowShare, l.sharesALock()
	return uint64(l.Segment(id))*segment + at%rounds*round + at/rounds
}

// Shared returns the rows of a share: from, and up to but without, to. It is the inverse of
// shareOf. They are equal if the share is empty.
func (l *Layout) Shared(share uint64) (from, to uint32) {
	round, segment := l.shares()
	first := uint32(share/segment) * uint32(l.Rows)
	share %= segment
	at := (share%round*l.sharesALock() + share/round) * GrowShare
	return first + uint32(min(at, uint64(l.Rows))), first + uint32(min(at+GrowShare, uint64(l.Rows)))
}

// Ends returns the cursor of a level at which all shares are handed out: those of all segments of
// the level before.
func (l *Layout) Ends(level int) uint64 {
	_, segment := l.shares()
	return segment << (level - 1)
}
