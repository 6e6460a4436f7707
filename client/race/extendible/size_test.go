package extendible

import (
	"math/rand/v2"
	"testing"
)

// TestSize: a pool that is given as much memory as its records need is the same
// as one with its memory left open.
func TestSize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		s := Shape{
			Format: Formats[i%len(Formats)], Nodes: 1 + rng.IntN(8), Records: uint64(rng.IntN(1 << (1 + i%20))),
			PairBytes: 1 + rng.IntN(1<<(1+i%13)), Clients: 1 + rng.IntN(1000),
		}
		p, need, err := Size(s)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		s.Memory = need
		again, needed, err := Size(s)
		if err != nil || again != p || needed > need {
			t.Fatalf("%+v: %+v in %d bytes, then %+v in %d: %v", s, p, need, again, needed, err)
		}
		s.Memory = 3 * need
		more, needed, err := Size(s)
		if err != nil || more.Depth < p.Depth || needed > s.Memory {
			t.Fatalf("%+v: %+v in %d bytes, with three times as much %+v in %d: %v", s, p, need, more, needed, err)
		}
	}
}
