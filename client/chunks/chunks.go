// Package chunks hands out a pool's memory in chunks, for stores in which clients claim and give
// back whole chunks.
//
// Each node has a table with one word a chunk: the client that owns it, and the class of its
// content (node.Entry). A node hands out chunks that were never used (node.ProcAlloc). A client
// gives a chunk back by its word, and another client may claim it then. The same holds for a chunk
// of a client that died, once the client is recovered. Words are changed by CAS only, and no value
// of a word ever returns. So a CAS that lands late does nothing.
//
// Which items of a chunk are free is up to its store. Holdings are the chunks that a worker has,
// and say when it claims more of them and when it gives some back.
package chunks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Arena describes the chunks of one kind. Its layout is the same on all nodes. Offsets and lengths
// are in bytes.
type Arena struct {
	Table uint64 // offset of the words
	First uint64 // offset of the first chunk
	Bytes uint64 // of a chunk
	Count uint64 // chunks of a node
}

// Word returns the address of a chunk's word.
func (a *Arena) Word(n, i int) rdma.Addr { return rdma.At(n, a.Table+8*uint64(i)) }

// At returns the address of a chunk.
func (a *Arena) At(n, i int) rdma.Addr { return rdma.At(n, a.First+a.Bytes*uint64(i)) }

// End returns the offset behind the last chunk.
func (a *Arena) End() uint64 { return a.First + a.Bytes*a.Count }

// Chunk is a chunk of an Arena, with its word as it was last read or written.
type Chunk struct {
	Node, Index int
	Entry       node.Entry
}

// Steps are the steps of a store's protocol in which the words of chunks are read and changed.
type Steps struct{ Read, Claim, Free rdma.Step }

// Client reads and changes words for a client of a pool. Its errors wrap those of Do.
type Client struct {
	Endpoint rdma.Endpoint
	ID       rdma.ClientID
	Steps    Steps
	// Do posts a batch as a step of the store's protocol and waits for all of it. Drop releases a
	// batch once nothing of it is in flight.
	Do   func(step rdma.Step, b *rdma.Batch) error
	Drop func(b *rdma.Batch)
	// Late means that a node may still hand out a chunk to the client, and nothing can wait for
	// that. Then the client must be recovered, once nothing of it is in flight. A worker that
	// closes reads the table too early then.
	Late bool

	// owed are chunks of which a give-back has failed.
	owed []debt
}

// debt is a list of chunks of an arena that are to be given back.
type debt struct {
	a    *Arena
	list []Chunk
}

const (
	// mostAtOnce bounds the words that are changed in one trip.
	mostAtOnce = 64
	// tableAtOnce is the number of words that are read in one trip.
	tableAtOnce = 1 << 12
)

// Fresh asks a node for one of its first count chunks that was never used, beginning at from. It
// reports false if there is none. The node takes it by a CAS of a word that is 0 (node.ProcAlloc),
// so no two clients get the same one.
func (c *Client) Fresh(a *Arena, n, class, count int, from uint64, within time.Duration) (Chunk, bool, error) {
	r := rdma.Request{Step: c.Steps.Claim, Proc: node.ProcAlloc}
	r.Arg = [6]uint64{a.Table, uint64(count), a.First, a.Bytes, uint64(class), from | node.Uncounted}
	err := c.Endpoint.Call(n, &r, max(within, 1))
	if errors.Is(err, client.ErrFull) {
		return Chunk{}, false, nil
	}
	if err != nil {
		// Only a call that was given up may still be served. Any other has ended, at the latest
		// once the node answers again (rdma.Queue): by then the table has what it handed out.
		c.Late = c.Late || errors.Is(err, rdma.ErrTimeout)
		return Chunk{}, false, fmt.Errorf("ask node %d for a chunk: %w", n, err)
	}
	return Chunk{n, int(r.Ret[0]), node.Entry(r.Ret[1])}, true, nil
}

// Left calls f with chunks of a node that their clients gave back or lost: one chunk first, then
// twice as many each time, up to most, until f reports that it is done. skip reports whether a
// chunk is not wanted; nil: all are wanted. The words may have changed since they were read: Claim
// finds out.
func (c *Client) Left(a *Arena, n, most int, skip func(Chunk) bool, f func(some []Chunk) (done bool, err error)) error {
	windows := (int(a.Count) + tableAtOnce - 1) / tableAtOnce
	if windows == 0 {
		return nil
	}
	from, batch := c.Endpoint.Rand().IntN(windows), 1 // different clients examine different chunks first
	for k := range windows {
		first := (from + k) % windows * tableAtOnce
		entries, err := c.read(a, n, first)
		if err != nil {
			return err
		}
		var some []Chunk
		offset := c.Endpoint.Rand().IntN(len(entries))
		for i := range entries {
			at := (offset + i) % len(entries)
			chunk := Chunk{n, first + at, entries[at]}
			if entries[at].Owner() == node.Left && (skip == nil || !skip(chunk)) {
				some = append(some, chunk)
			}
			if len(some) == 0 || len(some) < batch && i < len(entries)-1 {
				continue
			}
			if done, err := f(some); err != nil || done {
				return err
			}
			some, batch = some[:0], min(2*batch, most)
		}
	}
	return nil
}

// Claim takes the chunks of which the word is still as given. It returns these with their new
// words. It allocates the list.
//
// What a lost answer leaves: any of the words may name the client, and the lists of the client do
// not have these chunks. They stay its own until it closes, or is recovered: both read the table,
// see Of. A crash leaves the same.
func (c *Client) Claim(a *Arena, list []Chunk) (got []Chunk, err error) {
	err = c.swap(c.Steps.Claim, a, list, c.ID, func(mine Chunk) { got = append(got, mine) })
	if err != nil {
		return nil, fmt.Errorf("claim %d chunks: %w", len(list), err)
	}
	return got, nil
}

// Free gives back the chunks of which the word is still as given. For others the client is not the
// owner any more. If the answer is lost the CASes may have landed, or may land later: the caller
// must not use the chunks from then on. A later Free of chunks of the same node, which has just
// answered then, goes on with one list that has failed, since no list of the client has these
// chunks. A CAS that had landed does nothing.
func (c *Client) Free(a *Arena, list []Chunk) error {
	if len(list) == 0 {
		return nil
	}
	if err := c.free(a, list); err != nil {
		c.owed = append(c.owed, debt{a, slices.Clone(list)})
		return fmt.Errorf("free %d chunks: %w", len(list), err)
	}
	i := slices.IndexFunc(c.owed, func(d debt) bool { return d.list[0].Node == list[0].Node })
	if i < 0 {
		return nil
	}
	d := c.owed[i]
	c.owed = slices.Delete(c.owed, i, i+1)
	if c.free(d.a, d.list) != nil {
		c.owed = append(c.owed, d)
	}
	return nil
}

// free gives back the chunks of which the word is still as given.
func (c *Client) free(a *Arena, list []Chunk) error {
	return c.swap(c.Steps.Free, a, list, node.Left, func(Chunk) {})
}

// swap changes the owner of the chunks of which the word is still as given, and calls f for each of
// them.
//
// There is no order between the words, and any part of them may have changed when an error ends it.
// Words of different chunks do not depend on each other.
func (c *Client) swap(step rdma.Step, a *Arena, list []Chunk, owner rdma.ClientID, f func(Chunk)) error {
	for len(list) > 0 {
		some := list[:min(mostAtOnce, len(list))]
		list = list[len(some):]
		b := c.Endpoint.Batch()
		for _, o := range some {
			b.CompareSwap(a.Word(o.Node, o.Index), uint64(o.Entry), uint64(o.Entry.Next(owner, o.Entry.Class())))
		}
		err := c.Do(step, b)
		// A CAS that failed found another word: the chunk changed its owner since it was read.
		for i, o := range some {
			if err == nil && b.Op(i).Swapped() {
				f(Chunk{o.Node, o.Index, o.Entry.Next(owner, o.Entry.Class())})
			}
		}
		c.Drop(b)
		if err != nil {
			return err
		}
	}
	return nil
}

// Of returns the chunks of a node that a client owns.
func (c *Client) Of(a *Arena, n int, owner rdma.ClientID) (list []Chunk, err error) {
	all, err := c.Read(a, n)
	for i, e := range all {
		if e.Owner() == owner {
			list = append(list, Chunk{n, i, e})
		}
	}
	return list, err
}

// Read returns the words of all chunks of a node. They are not of one moment. That is enough: each
// change of a word expects the word as it was read.
func (c *Client) Read(a *Arena, n int) (all []node.Entry, err error) {
	for len(all) < int(a.Count) {
		some, err := c.read(a, n, len(all))
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// read reads the words from one on, as many as fit into a trip.
func (c *Client) read(a *Arena, n, from int) ([]node.Entry, error) {
	b := c.Endpoint.Batch()
	defer c.Drop(b)
	op := b.Read(a.Word(n, from), 8*min(tableAtOnce, int(a.Count)-from))
	if err := c.Do(c.Steps.Read, b); err != nil {
		return nil, fmt.Errorf("read the table of node %d: %w", n, err)
	}
	return decode(op.Buf), nil
}

func decode(p []byte) []node.Entry {
	list := make([]node.Entry, len(p)/8)
	for i := range list {
		list[i] = node.Entry(binary.LittleEndian.Uint64(p[8*i:]))
	}
	return list
}

// Survey reads the words of a node for a tool that is no client of the pool, as a step of the
// store's protocol. Each READ may take the time each.
func (a *Arena) Survey(ep rdma.Endpoint, step rdma.Step, n int, each time.Duration) (all []node.Entry, err error) {
	for len(all) < int(a.Count) {
		from := len(all)
		p, err := rdma.ReadBytes(ep, step, a.Word(n, from), 8*min(tableAtOnce, int(a.Count)-from), each)
		if err != nil {
			return nil, fmt.Errorf("read the table of node %d: %w", n, err)
		}
		all = append(all, decode(p)...)
	}
	return all, nil
}
