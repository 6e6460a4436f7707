package directory

import (
	"fmt"

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

// Walk calls visit for each bucket. It settles what it finds half done, and waits for its own
// accepts in flight before it reads the words. What it reports of buffers is right as long as no
// other client changes the directory. A node that did not answer once is not asked for its words
// again.
func (c *Client) Walk(visit func(f *Found) error) error {
	silent := make([]bool, c.Nodes)
	var f Found
	for bucket := range c.Buckets {
		c.begin(bucket)
		if err := c.run(&change{}); err != nil {
			return fmt.Errorf("walk: bucket %d: %w", bucket, err)
		}
		c.rebase()
		if err := c.Land(); err != nil {
			return fmt.Errorf("walk: wait for what is in flight to bucket %d: %w", bucket, err)
		}
		if err := c.words(silent); err != nil {
			return fmt.Errorf("walk: read the words of bucket %d: %w", bucket, err)
		}
		f = Found{Bucket: bucket, Entries: c.base.entries[:c.base.n], Held: f.Held[:0], Silent: f.Silent[:0]}
		for r := range c.Replicas {
			n := c.at[r].Node()
			switch k := &c.replicas[r]; {
			case silent[n]:
				f.Silent = append(f.Silent, n)
			case k.word.pointer() != 0:
				f.Held = append(f.Held, Held{n, bucket, k.word.pointer()})
			}
		}
		if err := visit(&f); err != nil {
			return err
		}
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
	for bucket := range c.Buckets {
		c.begin(bucket)
		if err := c.words(silent); err != nil {
			return fmt.Errorf("read the words of bucket %d: %w", bucket, err)
		}
		for r := range c.Replicas {
			switch n, p := c.at[r].Node(), c.replicas[r].word.pointer(); {
			case silent[n] && !skip(n):
				return fmt.Errorf("node %d does not tell what bucket %d holds there: %w", n, bucket, rdma.ErrNodeDown)
			case !silent[n] && p != 0:
				visit(Held{n, bucket, p})
			}
		}
	}
	return nil
}

// Land waits for this client's own accepts in flight, and settles the owners of their buffers. The
// error wraps rdma.ErrTimeout if some are still in flight.
func (c *Client) Land() error {
	return c.unresolved.Land(c.ep, c.quorum.Timeout(), c.settleUnresolved)
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
		err := c.gather("read bucket", from, from.Len(), c.askWord, c.tellWord)
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

// tellWord notes the answer to askWord.
func (c *Client) tellWord(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
	c.replicas[r].meet(Word(le.Uint64(b.Op(ch.First).Buf)))
	return quorum.Done
}
