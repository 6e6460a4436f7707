package client

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// MostClosing bounds the workers that leave at a time without a caller that waits for them.
const MostClosing = mostClosing

// Counting returns what a DB does at each operation of a worker to count it: one with a good
// answer. tell adds to p what was counted since it was called last.
func Counting(s Store, ep rdma.Endpoint) (count func(), tell func(p *telemetry.Process)) {
	b := newBook()
	b.publisher, b.now = new(Publisher), 1
	w := &worker{store: s, ep: ep, meter: NewMeter(s, ep), count: ep.Counters()}
	b.joined(w)
	return func() {
		b.took(w)
		w.begin()
		w.end(telemetry.Get, nil)
		b.gave(w)
	}, w.handOver
}
