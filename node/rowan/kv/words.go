package kv

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// Each server begins its memory with words: the last term that it has adopted as a member; by
// shard, the CommitVer, of which it is the primary (see control.tell), the stamp of the last entry
// when the shard was copied to it, and the term since which it is a replica (see since); and by
// node, the last term in which that one's server has given it what it had (see exchanger). The log
// is behind.
//
// Those that a server reads when it is started anew are sealed: the lower 48 bits are what the word
// says, and the upper ones a checksum, of which one is the parity, so that any one bit may flip.
// Zero is sealed as it is.
func (o Options) wordsBytes() uint64 {
	return uint64((8*(1+3*o.Shards+o.Nodes) + rdma.Stride - 1) / rdma.Stride * rdma.Stride)
}

func (o Options) termAt(node int) rdma.Addr { return rdma.At(node, o.Base) }

func (o Options) commitAt(node, shard int) rdma.Addr {
	return o.termAt(node).Add(uint64(8 * (1 + shard)))
}

func (o Options) copiedAt(node, shard int) rdma.Addr { return o.commitAt(node, o.Shards+shard) }

func (o Options) sinceAt(node, shard int) rdma.Addr { return o.copiedAt(node, o.Shards+shard) }

func (o Options) gaveAt(node, by int) rdma.Addr { return o.sinceAt(node, o.Shards+by) }

const sealShift = 48

// seal returns the word that says n, which has 48 bits.
func seal(n uint64) uint64 {
	if n == 0 {
		return 0
	}
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], n)
	return n | xxhash.Sum64(p[:])<<(sealShift+1) | uint64(bits.OnesCount64(n)&1)<<sealShift
}

// unseal returns what a word says; false, and 0: it was damaged.
func unseal(word uint64) (n uint64, ok bool) {
	n = word & (1<<sealShift - 1)
	if word != seal(n) {
		return 0, false
	}
	return n, true
}

// since reads the terms since which the server of a node has shards, by shard; 0: it does not have
// that one.
func (o Options) since(ep rdma.Endpoint, node int) ([]uint64, error) {
	return o.readWords(ep, "read since when", o.sinceAt(node, 0))
}

// readWords reads a sealed word for each shard. The error wraps rowan.ErrDamaged when one was
// damaged.
func (o Options) readWords(ep rdma.Endpoint, step rdma.Step, at rdma.Addr) ([]uint64, error) {
	b := ep.Batch()
	defer b.Release()
	op := b.Read(at, 8*o.Shards)
	if err := rdma.Do(ep, b.As(step), patience); err != nil {
		return nil, fmt.Errorf("%s of server %d: %w", step, at.Node(), err)
	}
	all := make([]uint64, o.Shards)
	for i := range all {
		var ok bool
		if all[i], ok = unseal(op.Word(i)); !ok {
			return nil, fmt.Errorf("%s of server %d: word %#x of shard %d: %w", step, at.Node(), op.Word(i), i,
				rowan.ErrDamaged)
		}
	}
	return all, nil
}
