package state

// Stats are counts of a server. Those of work done count from its start.
type Stats struct {
	Free    int    // free segments
	Taken   uint64 // uses of segments so far, over all servers of the node
	Cleaned uint64 // segments of which cleaners moved the live entries
	Moved   uint64 // entries that they moved
	Dropped uint64 // tombstones that were dropped
	Tombs   int    // tombstones that indexes name
	Items   int    // items of indexes: keys and tombstones
	Live    int64  // bytes of segments that entries take which indexes name
	// Primaries is the number of shards that the server serves, and Backups the number of others of
	// which it is a replica. Lag is how many versions it has given as a primary that are not
	// committed.
	Primaries, Backups int
	Lag                uint64
}

// Stats returns the server's counts. Those of different shards are not of one instant.
func (s *Server) Stats() Stats {
	stats := Stats{Free: s.Table.Free(), Taken: s.Table.Pushes()}
	s.Space.mu.Lock()
	defer s.Space.mu.Unlock()
	stats.Cleaned, stats.Moved, stats.Dropped = s.Space.cleaned, s.Space.moved, s.Space.dropped
	stats.Live = s.Space.total
	for _, n := range s.Space.tombs {
		stats.Tombs += n // for a moment one may be below 0: see Space
	}
	for _, sh := range s.Shards {
		// One shard at a time: workers wait for no more than that.
		sh.mu.Lock()
		if sh.index != nil {
			stats.Items += sh.index.Len()
			if sh.serves {
				stats.Primaries++
				stats.Lag += sh.version - sh.commit.Version
			} else {
				stats.Backups++
			}
		}
		sh.mu.Unlock()
	}
	return stats
}

// IsFull reports whether the server has no room for another shard, beside the segments that are
// kept free. It reckons with a shard of twice the average size. Each report to the manager asks
// this, so it leaves out what Stats counts besides: the items of all indexes.
func (s *Server) IsFull() bool {
	s.Space.mu.Lock()
	live := s.Space.total
	s.Space.mu.Unlock()
	replicas := int64(0)
	for _, sh := range s.Shards {
		sh.mu.Lock()
		if sh.index != nil {
			replicas++
		}
		sh.mu.Unlock()
	}
	// Segments that are kept for own logs count as taken.
	return int64(s.Table.Free()-s.Opt.Log.Own)*int64(s.Table.SegmentBytes()) <= 2*live/max(1, replicas)
}
