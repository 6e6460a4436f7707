package rowan

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Strawman is the straightforward log of section 3.2.1, which Rowan is compared with: a sender
// takes its place by a FETCH AND ADD of a word, and then WRITEs there. That takes two trips, and
// all senders share the word's rate. It has one segment, which is not used again, and a sender that
// dies between the two leaves a place of unknown length.
type Strawman struct {
	Tail rdma.Addr // the word: how many bytes are taken
	Log  rdma.Addr
	Size uint64
}

// Append writes p behind what is there, persistent as an entry of Rowan is, and returns where. The
// error wraps rdma.ErrFull when there is no room.
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
