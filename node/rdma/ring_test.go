package rdma

import "testing"

// TestRingStreams compares in which stream entries are, and what they take, with what is said of
// it.
func TestRingStreams(t *testing.T) {
	for _, c := range []struct{ mtu, streams, n, stream, taken int }{
		{4096, 6, 1, 0, 64}, {4096, 6, 64, 0, 64}, {4096, 6, 65, 1, 128}, {4096, 6, 1024, 4, 1024},
		{4096, 6, 1025, 5, 4096}, {4096, 6, 4096, 5, 4096}, {4096, 6, 4097, 5, 8192},
		{4096, 6, MaxMessage, 5, MaxMessage}, {1024, 5, 512, 3, 512}, {1024, 5, 513, 4, 1024}, {256, 3, 128, 1, 128},
		{256, 3, 129, 2, 256}, {256, 3, 300, 2, 512}, {4096, 1, 1, 0, 64}, {4096, 1, 4096 + 65, 0, 4096 + 128},
		{4096, 0, 65, 0, 128},
	} {
		p := RingPromises{MTU: c.mtu, Streams: c.streams}
		if got := RingStreams(c.mtu); c.streams > 1 && got != c.streams {
			t.Errorf("an MTU of %d makes %d streams, want %d", c.mtu, got, c.streams)
		}
		if s, n := p.Stream(c.n), p.Taken(c.n); s != c.stream || n != c.taken {
			t.Errorf("%+v: %d bytes are in stream %d and take %d, want %d and %d", p, c.n, s, n, c.stream, c.taken)
		}
	}
}

// TestIsSettled asks for each buffer of a ring with one stream, and with several.
func TestIsSettled(t *testing.T) {
	for _, c := range []struct {
		count RingCount
		want  string
	}{
		{RingCount{}, "----"}, {RingCount{Begun: 3, Settled: 2}, "ss--"},
		{RingCount{Begun: 3, Settled: 0, Open: [2 * MaxStreams]uint64{1, 3}}, "-s--"},
		{RingCount{Begun: 4, Settled: 1, Open: [2 * MaxStreams]uint64{2}}, "s-ss"},
	} {
		got := ""
		for n := range uint64(4) {
			if c.count.IsSettled(n) {
				got += "s"
			} else {
				got += "-"
			}
		}
		if got != c.want {
			t.Errorf("%+v says %s, want %s", c.count, got, c.want)
		}
	}
}
