package kv

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// Each server's memory begins with words: the last term that it adopted as a member; for each shard
// the CommitVer, if the server is the primary (see digest.CommitVers), the stamp of the last entry
// when the shard was copied to it, and the term since which it is a replica (see Since); and for
// each node the last term in which that node's server has given what it had (see package exchange).
// The log follows.
//
// A server reads some of these words when it is restarted. They are sealed: the lower 48 bits are
// the value, the upper ones a checksum with a parity bit, so that a flip of any one bit is found.
// Zero is sealed as zero.
func (o Options) wordsBytes() uint64 {
	return uint64((8*(1+3*o.Shards+o.Nodes) + rdma.Stride - 1) / rdma.Stride * rdma.Stride)
}

// TermAt returns the address of the last term. The server itself writes it.
func (o Options) TermAt(node int) rdma.Addr { return rdma.At(node, o.Base) }

// CommitAt returns the address of a shard's CommitVer. The server itself writes it, and others read
// it.
func (o Options) CommitAt(node, shard int) rdma.Addr {
	return o.TermAt(node).Add(uint64(8 * (1 + shard)))
}

// CopiedAt returns the address of the stamp of a shard's copy. The server that copies the shard
// here writes it.
func (o Options) CopiedAt(node, shard int) rdma.Addr { return o.CommitAt(node, o.Shards+shard) }

// SinceAt returns the address of the term since which the server has a shard. The server itself
// writes it.
func (o Options) SinceAt(node, shard int) rdma.Addr { return o.CopiedAt(node, o.Shards+shard) }

// GaveAt returns the address of the term in which the server of another node gave. That server
// writes it.
func (o Options) GaveAt(node, by int) rdma.Addr { return o.SinceAt(node, o.Shards+by) }

// sealShift is the number of bits of a sealed value.
const sealShift = 48

// Seal returns the word for n, which must fit into 48 bits.
func Seal(n uint64) uint64 {
	if n == 0 {
		return 0
	}
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], n)
	return n | xxhash.Sum64(p[:])<<(sealShift+1) | uint64(bits.OnesCount64(n)&1)<<sealShift
}

// Unseal returns the value of a word. It returns 0 and false if the word is damaged.
func Unseal(word uint64) (n uint64, ok bool) {
	n = word & (1<<sealShift - 1)
	if word != Seal(n) {
		return 0, false
	}
	return n, true
}

// Since reads the terms since which a node's server has the shards, by shard; 0: it does not have
// that one.
func (o Options) Since(ep rdma.Endpoint, node int) ([]uint64, error) {
	return o.readWords(ep, "read since when", o.SinceAt(node, 0))
}

// readWords reads one sealed word a shard. The error wraps rowan.ErrDamaged if one is damaged.
func (o Options) readWords(ep rdma.Endpoint, step rdma.Step, at rdma.Addr) ([]uint64, error) {
	b := ep.Batch()
	defer b.Release()
	op := b.Read(at, 8*o.Shards)
	if err := rdma.Do(ep, b.As(step), LocalTimeout); err != nil {
		return nil, fmt.Errorf("%s of server %d: %w", step, at.Node(), err)
	}
	all := make([]uint64, o.Shards)
	for i := range all {
		var ok bool
		if all[i], ok = Unseal(op.Word(i)); !ok {
			return nil, fmt.Errorf("%s of server %d: word %#x of shard %d: %w", step, at.Node(), op.Word(i), i,
				rowan.ErrDamaged)
		}
	}
	return all, nil
}
