package fusee

import (
	"errors"
	"fmt"
	"testing"

	"github.com/farkv/farkv/client"
)

// TestLent: clients whose pairs have all sizes fill a pool in turn, until it has refused ten pairs
// for each of them. Then three fifths of its bytes are pairs: what is free in one client's blocks
// is found by the others. Each client is able to DELETE its pairs, and it is so again when the
// pool is filled again.
func TestLent(t *testing.T) {
	const workers, least, most, blocks = 30, 300, 3000, 150
	p := cramped(blocks)
	p.BlockBytes, p.Groups = 8192, 400
	p.RegionBytes = blocks*p.BlockBytes + 4096
	f := simPool(t, 1, p)
	var clients []*Client
	for range workers {
		clients = append(clients, worker2(t, f))
	}
	rng := clients[0].s.Rand()
	for round := range 3 {
		held := make([][]string, workers)
		live := 0
		for full := 0; full < 10*workers; {
			for w, c := range clients {
				name := fmt.Sprintf("%d of %d", len(held[w]), w)
				size := least + rng.IntN(most-least)
				switch err := c.Insert([]byte(name), make([]byte, size)); {
				case errors.Is(err, client.ErrFull):
					full++
				case err != nil:
					t.Fatal(err)
				default:
					held[w] = append(held[w], name)
					live += len(name) + size
				}
			}
		}
		if live < 3*blocks*int(p.BlockBytes)/5 {
			t.Errorf("round %d: the pool is full with %d bytes in %d", round, live, blocks*p.BlockBytes)
		}
		for w, c := range clients {
			for _, name := range held[w] {
				if err := c.Delete([]byte(name)); err != nil {
					t.Fatalf("round %d: delete %s of %d: %v", round, name, len(held[w]), err)
				}
			}
		}
	}
	lent := uint64(0)
	for _, c := range clients {
		lent += c.Stats().Lent
		must(t, c.Close())
	}
	if lent < blocks {
		t.Errorf("%d blocks were lent: this test shows nothing", lent)
	}
	checkClean(t, f)
}
