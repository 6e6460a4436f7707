package kit

import "github.com/farkv/farkv/node/rdma"

// A Copier copies pool memory in pieces, many at a time. A master restores with it what a dead node
// held. In the end the caller calls Flush, or Drop.
type Copier struct {
	// Batch returns an empty batch. Do posts one as a step of the store's protocol and waits for
	// all of it.
	Batch func() *rdma.Batch
	Do    func(b *rdma.Batch) error

	// READs that wait for Flush; nil: none. The Copier owns the batch.
	read *rdma.Batch
	// Bytes that these read.
	bytes uint64
	// By READ: where it is copied to.
	to []rdma.Addr
}

const (
	copyBytes  = 16 << 10  // bound of a verb
	copyAtOnce = 256 << 10 // bound of a trip, exceeded by less than a verb
)

// Copy copies n bytes, of whole words. The copy may be delayed until Flush.
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

// Drop forgets what waits.
func (c *Copier) Drop() {
	if c.read != nil {
		c.read.Release()
		c.read = nil
	}
}

// Flush copies what waits.
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
		// The WRITEs have buffers of their own: a late WRITE may land after the READs' buffers were
		// reused.
		write.WriteCopy(at, c.read.Op(i).Buf)
	}
	return c.Do(write)
}
