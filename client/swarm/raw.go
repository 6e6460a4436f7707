package swarm

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// RAW is what replication is measured against (section 7): objects of one replica and no words,
// whose value clients READ and WRITE in place, without any synchronization, in one trip each. It is
// not linearizable, on purpose. A reader may find parts of several values, for as long as no client
// writes again. A write that lands behind a deletion undoes it for the clients that know the
// object. So only the directory proves that an object is still there, and locations are looked up
// again in each epoch before something is written.
//
// An object is:
//
//	0  length of the value, and 1; 0: it was never written; rawGone: it was deleted
//	8  value
const (
	rawHeader = 8
	rawGone   = ^uint64(0)
)

// raw reports whether objects are RAW's.
func (s *Shape) raw() bool { return s.Words == 0 }

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

func (c *Client) writeRaw(k *Register, value []byte, failed func(what string, err error) error) error {
	if err := c.writeInPlace(stepWriteValue, k, uint64(len(value))+1, value); err != nil {
		return failed("write", err)
	}
	return nil
}

func (c *Client) buryRaw(k *Register) error {
	if err := c.writeInPlace(stepBury, k, rawGone, nil); err != nil {
		return fmt.Errorf("write the tombstone: %w", err)
	}
	k.gone = true
	return nil
}

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
