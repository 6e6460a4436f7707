package kit

import "github.com/farkv/farkv/node/rdma"

// A Copier copies pool memory in pieces, many at a time: a master restores by it what a dead node
// held. It is to be flushed in the end, or dropped.
type Copier struct {
	// Batch returns an empty batch, and Do posts one as a step of the store's protocol and waits for
	// all of it.
	Batch func() *rdma.Batch
	Do    func(b *rdma.Batch) error

	read  *rdma.Batch // what is waiting; nil: nothing
	bytes uint64
	to    []rdma.Addr
}

const (
	copyBytes  = 16 << 10  // of a verb, at most
	copyAtOnce = 256 << 10 // of a trip, or one verb more
)

// Copy copies n bytes, of whole words.
func (c *Copier) Copy(from, to rdma.Addr, n uint64) error {
	for done := uint64(0); done < n; {
		if c.read == nil {
			c.read, c.bytes, c.to = c.Batch(), 0, c.to[:0]
		}
		part := min(n-done, copyBytes)
		c.read.Read(from.Add(done), int(part))
		c.to = append(c.to, to.Add(done))
		done, c.bytes = done+part, c.bytes+part
		if c.bytes >= copyAtOnce {
			if err := c.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Drop forgets what is waiting.
func (c *Copier) Drop() {
	if c.read != nil {
		c.read.Release()
		c.read = nil
	}
}

// Flush copies what is waiting.
func (c *Copier) Flush() error {
	if c.read == nil {
		return nil
	}
	defer c.Drop()
	if err := c.Do(c.read); err != nil {
		return err
	}
	write := c.Batch()
	defer write.Release()
	for i, at := range c.to {
		p := write.Alloc(len(c.read.Op(i).Buf)) // its own: a late WRITE may land when the READs' buffers are reused
		copy(p, c.read.Op(i).Buf)
		write.Write(at, p)
	}
	return c.Do(write)
}
