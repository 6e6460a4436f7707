package rowan

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Strawman is the straightforward log of section 3.2.1, which Rowan is compared with. A sender
// takes a place by a FETCH AND ADD of a word, and then WRITEs the entry there. That takes two
// trips, and all senders share the rate of atomics on one word. The log has one segment, which is
// never used again. A sender that dies between the two verbs leaves a gap of unknown length.
type Strawman struct {
	// Tail is the word that counts the bytes that are taken.
	Tail rdma.Addr
	Log  rdma.Addr
	Size uint64
}

// Append writes p behind the other entries, as durably as an entry of Rowan, and returns its
// address. The caller owns p. The error wraps rdma.ErrFull when there is no room.
func (m Strawman) Append(ep rdma.Endpoint, p []byte, within time.Duration) (rdma.Addr, error) {
	b := ep.Batch()
	defer b.Release()
	place := b.FetchAdd(m.Tail, uint64(strides(len(p))))
	if err := rdma.Do(ep, b.As("take place"), within); err != nil {
		return 0, err
	}
	if place.Result > m.Size || uint64(len(p)) > m.Size-place.Result {
		return 0, fmt.Errorf("append %d bytes behind %d of %d: %w", len(p), place.Result, m.Size, rdma.ErrFull)
	}
	at := m.Log.Add(place.Result)
	w := ep.Batch()
	defer w.Release()
	w.Chain()
	buf := w.Alloc(len(p))
	copy(buf, p)
	w.Write(at, buf)
	w.Read(at, 8)
	return at, rdma.Do(ep, w.As("write entry"), within)
}
