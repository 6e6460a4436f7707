package fusee

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
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

// TestDeletesFindRoom: clients with pairs of all sizes share a pool that is full most of the time.
// Each keeps an object for its DELETEs, also while it waits for a block of another size class,
// which others may take.
func TestDeletesFindRoom(t *testing.T) {
	seeds.Each(t, 12, deletesFindRoom)
}

func deletesFindRoom(seed uint64) error {
	p := cramped(60)
	p.BlockBytes, p.Timeout, p.Groups = 16<<10, 20*time.Millisecond, 200
	p.RegionBytes = 60*p.BlockBytes + 4096
	l, err := layout.New(p, 1, 1<<40)
	if err != nil {
		return err
	}
	s := sim.New(sim.Options{Seed: seed, Nodes: 1, Memory: l.Bytes, Clients: p.Clients, Handler: node.Serve})
	defer s.Close()
	if err := session.Make(s, p); err != nil {
		return err
	}
	var wrong error
	for w := range 20 {
		s.Go(fmt.Sprint(w), func(ep rdma.Endpoint) {
			if err := insertAndDelete(ep, w); err != nil {
				wrong = fmt.Errorf("client %d: %w", w, err)
			}
		})
	}
	return errors.Join(s.Run(), wrong)
}

// insertAndDelete inserts pairs as the pool has room, and deletes all of them.
func insertAndDelete(ep rdma.Endpoint, number int) error {
	c, err := Open(ep, Options{})
	if err != nil {
		return err
	}
	var held []string
	remove := func() error {
		err := c.Delete([]byte(held[0]))
		held = held[1:]
		return err
	}
	for i := range 100 {
		name := fmt.Sprintf("%d of %d", i, number)
		err := c.Insert([]byte(name), make([]byte, ep.Rand().IntN(7<<10)))
		if err == nil {
			held = append(held, name)
		} else if !errors.Is(err, client.ErrFull) {
			return err
		}
		if len(held) > 0 && (err != nil || ep.Rand().IntN(3) == 0) {
			if err := remove(); err != nil {
				return err
			}
		}
	}
	for len(held) > 0 {
		if err := remove(); err != nil {
			return err
		}
	}
	return c.Close()
}
