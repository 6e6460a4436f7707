package directory

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Held is a buffer that a bucket's word names.
type Held struct {
	Node    int
	Segment uint64
	Pointer uint16
}

// Found is what a walk finds of a bucket. Its lists are valid until the walk visits the next
// bucket.
type Found struct {
	Bucket  uint64
	Entries []Entry
	Held    []Held
	// Silent are nodes with a replica that do not answer: it is not known what the replica's word
	// names.
	Silent []int
}

// walkBatch is how many buckets a walk reads in a trip: with 7 replicas 224 verbs of 20 KiB. Trips
// are what a walk beside busy clients takes its time for.
const walkBatch = 32

// Walk calls visit for each bucket. It settles what it finds half done, and waits for its own
// accepts in flight before it reads the words. What it reports of buffers is right as long as no
// other client changes the directory. A node that did not answer once is not asked for its words
// again.
//
// Buckets that are settled are read many a trip. They are so by the rule of look: a majority agrees
// on the newest round that was accepted.
func (c *Client) Walk(visit func(f *Found) error) error {
	silent := make([]bool, c.Nodes)
	var f Found
	return c.eachRun(silent, slotBytes, func(bucket uint64, met bool) error {
		settled := false
		if round, n := c.agreed(); met && n >= c.majority() {
			var err error
			// Behind a fence the bucket is asked anew.
			if settled, err = c.load(round); err != nil && !errors.Is(err, rdma.ErrStale) {
				return fmt.Errorf("walk: bucket %d: %w", bucket, err)
			}
		}
		if settled {
			c.rebase()
		} else if err := c.settle(bucket, silent); err != nil {
			return fmt.Errorf("walk: %w", err)
		}
		f = Found{Bucket: bucket, Entries: c.base.entries[:c.base.n], Held: f.Held[:0], Silent: f.Silent[:0]}
		for r := range c.Replicas {
			n := c.at[r].Node()
			switch k := &c.replicas[r]; {
			case k.word.pointer() != 0:
				f.Held = append(f.Held, Held{n, bucket, k.word.pointer()})
			case !k.known:
				f.Silent = append(f.Silent, n)
			}
		}
		return visit(&f)
	})
}

// settle settles a bucket, and makes its value the base. It reads the words behind that.
func (c *Client) settle(bucket uint64, silent []bool) error {
	if err := c.run(&change{}); err != nil {
		return fmt.Errorf("bucket %d: %w", bucket, err)
	}
	c.rebase()
	if err := c.Land(); err != nil {
		return fmt.Errorf("wait for what is in flight to bucket %d: %w", bucket, err)
	}
	if err := c.words(silent); err != nil {
		return fmt.Errorf("read the words of bucket %d: %w", bucket, err)
	}
	return nil
}

// Words calls visit for each buffer that a word names, and settles nothing. A buffer that no word
// names, and that no client owns, is never named again. skip reports whether a node that does not
// answer may be left out; otherwise the error wraps rdma.ErrNodeDown. The caller must have called
// Land, so that no verb of this client is in flight. A sweep relies on that: it frees such buffers
// before the walk allocates some.
func (c *Client) Words(visit func(h Held), skip func(node int) bool) error {
	silent := make([]bool, c.Nodes)
	return c.eachRun(silent, wordBytes, func(bucket uint64, met bool) error {
		if !met {
			if err := c.words(silent); err != nil {
				return fmt.Errorf("read the words of bucket %d: %w", bucket, err)
			}
		}
		for r := range c.Replicas {
			switch n, k := c.at[r].Node(), &c.replicas[r]; {
			case !k.known && !skip(n):
				return fmt.Errorf("node %d does not tell what bucket %d holds there: %w", n, bucket, rdma.ErrNodeDown)
			case k.word.pointer() != 0:
				visit(Held{n, bucket, k.word.pointer()})
			}
		}
		return nil
	})
}

// Land waits for this client's own accepts in flight, and settles the owners of their buffers. The
// error wraps rdma.ErrTimeout if some are still in flight.
func (c *Client) Land() error {
	return c.unresolved.Land(c.ep, c.quorum.Timeout(), c.settleUnresolved)
}

// eachRun calls f for each bucket, in order. Before that it reads many buckets in a trip: bytes of
// the first replica, and the words of the others. It asks no node that is silent. met: what was
// read of this bucket is in c.replicas, and the value in place is found if it is of its word's
// round. Otherwise a verb failed, and f has to ask on its own, and to find out what is silent.
func (c *Client) eachRun(silent []bool, bytes int, f func(bucket uint64, met bool) error) error {
	var err error
	for from := uint64(0); from < c.Buckets && err == nil; from += walkBatch {
		to, silent := min(from+walkBatch, c.Buckets), slices.Clone(silent) // which f may change
		if err = c.Land(); err != nil {
			return fmt.Errorf("wait for what is in flight before bucket %d: %w", from, err)
		}
		b := c.ep.Batch()
		for bucket := from; bucket < to; bucket++ {
			c.place(bucket, c.at[:c.Replicas])
			for r, a := range c.at[:c.Replicas] {
				switch {
				case silent[a.Node()]:
				case r == 0:
					b.Read(a, bytes)
				default:
					b.Read(a, wordBytes)
				}
			}
		}
		met, at := !c.moved() && rdma.Do(c.ep, b.As(stepRead), c.quorum.Timeout()) == nil, 0
		for bucket := from; bucket < to && err == nil; bucket++ {
			c.begin(bucket)
			clear(c.replicas[:c.Replicas])
			c.has = false
			for r, a := range c.at[:c.Replicas] {
				if met && !silent[a.Node()] {
					c.tell(r, b.Op(at).Buf)
					at++
				}
			}
			err = f(bucket, met)
		}
		b.Release()
	}
	return err
}

// words reads the words of all replicas on nodes that are not silent, and adds those to silent that
// do not answer now. A node that may still answer is added only if no other node is the reason that
// the step failed. The words of silent ones are 0 afterwards, which says nothing.
func (c *Client) words(silent []bool) error {
	for range c.Replicas + 1 { // each round but the last one finds a silent node
		from := c.all()
		for r := range c.Replicas {
			if silent[c.at[r].Node()] {
				from &^= quorum.Only(r)
			}
		}
		clear(c.replicas[:c.Replicas])
		err := c.gather(stepRead, from, from.Len(), c.askWord, c.tellSlot)
		if !passing(err) {
			return err
		}
		lost := from &^ c.quorum.Done()
		if lost != c.quorum.Flying() {
			lost &^= c.quorum.Flying() // these may answer yet
		}
		for r := range c.Replicas {
			if lost.Has(r) {
				silent[c.at[r].Node()] = true
			}
		}
	}
	return fmt.Errorf("%d nodes: %w", c.Replicas, rdma.ErrNodeDown)
}

// askWord reads a replica's word.
func (c *Client) askWord(b *rdma.Batch, r int) error {
	b.Read(c.at[r], wordBytes)
	return nil
}
