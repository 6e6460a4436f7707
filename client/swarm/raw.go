package swarm

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// RAW is the baseline that replication is measured against (section 7): objects of one replica
// without words. Clients READ and WRITE the value in place, without any synchronization, in one
// trip each. It is not linearizable, on purpose. A reader may find parts of several values, until
// a client writes again. A write that lands behind a deletion undoes the deletion for the clients
// that know the object. So only the directory proves that an object still exists, and a client
// looks up a location again in each epoch before it writes there.
//
// An object is:
//
//	0  length of the value, plus 1; 0: it was never written; rawGone: it was deleted
//	8  value
const (
	rawHeader = 8
	rawGone   = ^uint64(0)
)

// raw reports whether objects are RAW's.
func (s *Shape) raw() bool { return s.Words == 0 }

// readRaw is RAW's READ: one trip. The value lives in the step's batch. A length above the
// maximum is damage.
func (c *Client) readRaw(k *Register) ([]byte, error) {
	var p []byte
	err := c.gather(stepReadValue, k, c.all(), 1,
		func(b *rdma.Batch, r int) error {
			b.Read(k.At[r], c.Bytes(true))
			return nil
		},
		func(_ int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
			p = b.Op(ch.First).Buf
			return quorum.Done
		})
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	switch n := le.Uint64(p); {
	case n == 0:
		return nil, fmt.Errorf("read: %w", ErrEmpty)
	case n == rawGone:
		k.gone = true
		return nil, fmt.Errorf("read: %w", ErrGone)
	case n-1 > uint64(c.MaxValue):
		return nil, fmt.Errorf("read a value of %d bytes (at most %d): %w", n-1, c.MaxValue, client.ErrDamaged)
	default:
		end := rawHeader + int(n-1)
		return p[rawHeader:end:end], nil
	}
}

// writeRaw is RAW's WRITE: one trip. failed wraps the error of its step.
//
// What a crash here leaves: any part of the value, in place.
func (c *Client) writeRaw(k *Register, value []byte, failed func(what string, err error) error) error {
	if err := c.writeInPlace(stepWriteValue, k, uint64(len(value))+1, value); err != nil {
		return failed("write", err)
	}
	return nil
}

// writeRawTombstone writes RAW's tombstone. A WRITE of another client that lands later removes it
// again.
func (c *Client) writeRawTombstone(k *Register) error {
	if err := c.writeInPlace(stepTombstone, k, rawGone, nil); err != nil {
		return fmt.Errorf("write the tombstone: %w", err)
	}
	k.gone = true
	return nil
}

// writeInPlace writes the header and a value, which may be nil, in one WRITE. It copies the value.
func (c *Client) writeInPlace(step rdma.Step, k *Register, header uint64, value []byte) error {
	return c.gather(step, k, c.all(), 1,
		func(b *rdma.Batch, r int) error {
			p := b.Alloc(rawHeader + len(value))
			le.PutUint64(p, header)
			copy(p[rawHeader:], value)
			b.Write(k.At[r], p)
			return nil
		},
		func(int, *rdma.Batch, quorum.Chain) quorum.Verdict { return quorum.Done })
}
