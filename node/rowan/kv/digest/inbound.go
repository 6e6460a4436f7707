package digest

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

var (
	_ Inbound = (*rowan.Receiver)(nil)
	_ Inbound = (*rowan.Lender)(nil)
)

// Inbound is the logs of a node in which other servers' records arrive. It belongs to the task that
// receives.
type Inbound interface {
	// Step finds segments in which nothing can land any more, frees those that were given back, and
	// gives the senders room.
	Step() error
	// Moved reports whether the last Step found that senders have made progress.
	Moved() bool
	// Next returns the next of the segments that Step found. Digest is called once for each, in
	// this order, and calls f for the entries that end in it.
	Next() (rowan.Segment, bool)
	Digest(s rowan.Segment, f func(*rowan.Entry) error) error
	// Begun reports whether an entry with blocks in a segment that was digested has not ended.
	Begun(s rowan.Segment) bool
	// Free gives back a segment that was digested. None of the entries with blocks in it is needed,
	// and nothing reads it.
	Free(s rowan.Segment)
	Close() error
	// Recover calls f for the entries that an earlier receiver left, each with the segment where it
	// ends, and returns these segments. Digest is not called for them. See rowan.Receiver.
	Recover(f func(rowan.Segment, *rowan.Entry) error) ([]rowan.Segment, error)
	// Settle calls f for entries in segments that are not used yet, of each source up to a stamp up
	// to which nothing is in flight. They are not repeated later. It follows a Step, and Digest of
	// all that Next returns.
	Settle(upTo func(source uint16) uint64, f func(rowan.Segment, *rowan.Entry) error) error
	// Starving reports whether appends that make room find none.
	Starving() bool
	// Counts reports whether nothing can land once its sender was fenced off.
	Counts() bool
}

// NewInbound returns the logs in which other servers append at this server.
func NewInbound(s *state.Server, ep rdma.Endpoint) (Inbound, error) {
	if s.Opt.Kind == kv.Rowan {
		return s.Table.Receiver(ep)
	}
	return s.Table.Lender(ep)
}
