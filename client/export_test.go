package client

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// MostDismissed bounds the workers that leave at a time without anybody who waits for them.
const MostDismissed = mostDismissed

// Counting returns what a DB that tells does more than one that does not, at each operation of a worker: one with a good answer.
func Counting(s Store, ep rdma.Endpoint) func() {
	b := newBook()
	b.publisher, b.now = new(Publisher), 1
	w := &worker{store: s, ep: ep, meter: NewMeter(s, ep), count: ep.Counters()}
	b.joined(w)
	return func() {
		b.took(w)
		w.begin()
		w.end(telemetry.Get, nil)
		b.gave(w)
	}
}
