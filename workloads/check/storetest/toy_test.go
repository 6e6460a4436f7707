package storetest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// toy is the simplest store that is right: on node 0 a table of slot words, each of which belongs
// for ever to the first key that takes it, and behind it blocks that are written once and then
// published by a CAS of the slot. A deleted key's slot points at a block without a value. With a
// flaw it is wrong.
type toy struct {
	ep    rdma.Endpoint
	flaw  string
	cache map[string][]byte
	chunk uint64 // what is left of the memory that it took
	left  uint64
}

const (
	toySlots  = 1 << 14
	toyBump   = 8 // where the word is that memory is taken from
	toyTable  = 4096
	toyData   = toyTable + 8*toySlots
	toyChunk  = 64 << 10
	toyLock   = 64 // of the flaw "lock"
	toyKey    = 64
	toyValue  = 1000
	toyTries  = 10_000
	toyWithin = 2 * time.Second
)

func toyFormat(f rdma.Fabric) error {
	ep, err := f.Open("format")
	if err != nil {
		return err
	}
	b := ep.Batch()
	b.FetchAdd(rdma.At(0, toyBump), toyData)
	err = rdma.Do(ep, b, toyWithin)
	b.Release()
	if err != nil {
		return err
	}
	return ep.Close()
}

// block is what a slot points at.
type block struct {
	key, value []byte
	gone       bool
}

func encode(key, value []byte) []byte {
	size, gone := len(value), uint64(0)
	if value == nil {
		gone = 1
	}
	p := binary.LittleEndian.AppendUint64(nil, uint64(len(key))|uint64(size)<<16|gone<<63)
	p = append(append(p, key...), value...)
	p = binary.LittleEndian.AppendUint64(p, xxhash.Sum64(p))
	return append(p, make([]byte, -len(p)&7)...)
}

func decodeBlock(p []byte) (block, bool) {
	if len(p) < 16 {
		return block{}, false
	}
	head := binary.LittleEndian.Uint64(p)
	k, v := int(head&0xffff), int(head>>16&0xffffffff)
	if k+v+16 > len(p) || binary.LittleEndian.Uint64(p[8+k+v:]) != xxhash.Sum64(p[:8+k+v]) {
		return block{}, false
	}
	return block{p[8 : 8+k], p[8+k : 8+k+v], head>>63 != 0}, true
}

// do runs one verb.
func (s *toy) do(add func(b *rdma.Batch) *rdma.Op) (rdma.Op, error) {
	b := s.ep.Batch()
	defer b.Release()
	op := add(b)
	if err := rdma.Do(s.ep, b, toyWithin); err != nil {
		return rdma.Op{}, fmt.Errorf("%w: %w", client.ErrUncertain, err)
	}
	out := *op
	out.Buf = bytes.Clone(op.Buf)
	return out, nil
}

// find returns a key's slot and what it holds; an empty slot is where the key would go.
func (s *toy) find(key []byte) (at rdma.Addr, word uint64, b block, err error) {
	for i := range uint64(toySlots) {
		at = rdma.At(0, toyTable+8*((xxhash.Sum64(key)+i)%toySlots))
		slot, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.Read(at, 8) })
		if err != nil {
			return 0, 0, block{}, err
		}
		word = binary.LittleEndian.Uint64(slot.Buf)
		if word == 0 {
			return at, 0, block{gone: true}, nil
		}
		p, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, word&(1<<48-1)), int(word>>48)) })
		if err != nil {
			return 0, 0, block{}, err
		}
		b, ok := decodeBlock(p.Buf)
		if !ok && s.flaw != "early" && s.flaw != "inplace" {
			return 0, 0, block{}, fmt.Errorf("block %x: %w", word, client.ErrDamaged)
		}
		if !ok || bytes.Equal(b.key, key) {
			return at, word, b, nil
		}
	}
	return 0, 0, block{}, client.ErrFull
}

// alloc allocates memory, which is never freed.
func (s *toy) alloc(n int) (uint64, error) {
	if s.left < uint64(n) {
		op, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, toyBump), toyChunk) })
		if err != nil {
			return 0, err
		}
		s.chunk, s.left = op.Result, toyChunk
	}
	off := s.chunk
	s.chunk, s.left = s.chunk+uint64(n), s.left-uint64(n)
	return off, nil
}

func (s *toy) write(off uint64, p []byte) error {
	_, err := s.do(func(b *rdma.Batch) *rdma.Op {
		buf := b.Alloc(len(p))
		copy(buf, p)
		return b.Write(rdma.At(0, off), buf)
	})
	return err
}

// change gives key a new block, or none; want reports whether the key must be there.
func (s *toy) change(key, value []byte, want bool, no error) error {
	if len(key) > toyKey || len(value) > toyValue {
		return client.ErrTooLarge
	}
	delete(s.cache, string(key))
	p := encode(key, value)
	for range toyTries {
		at, old, b, err := s.find(key)
		if err != nil {
			return err
		}
		if b.gone == want && !(s.flaw == "answer" && value != nil) {
			return no
		}
		if s.flaw == "inplace" && want && old>>48 == uint64(len(p)) {
			return s.write(old&(1<<48-1), p)
		}
		done, err := s.publish(at, old, p)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("lost %d races: %w", toyTries, client.ErrUncertain)
}

// publish writes a block and swaps it in.
func (s *toy) publish(at rdma.Addr, old uint64, p []byte) (bool, error) {
	off, err := s.alloc(len(p))
	if err != nil {
		return false, err
	}
	if s.flaw != "early" {
		if err := s.write(off, p); err != nil {
			return false, err
		}
	}
	op, err := s.do(func(b *rdma.Batch) *rdma.Op {
		return b.CompareSwap(at, old, off|uint64(len(p))<<48)
	})
	if err != nil {
		return false, err
	}
	if s.flaw == "early" && op.Swapped() {
		err = s.write(off, p)
	}
	return op.Swapped() || s.flaw == "lost", err
}

// locked holds the one lock of the flaw "lock", which a crash never gives back, around f.
func (s *toy) locked(f func() error) error {
	if s.flaw != "lock" {
		return f()
	}
	for {
		op, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.CompareSwap(rdma.At(0, toyLock), 0, 1) })
		if err != nil {
			return err
		}
		if op.Swapped() {
			break
		}
		s.ep.Sleep(10 * time.Millisecond)
	}
	err := f()
	s.do(func(b *rdma.Batch) *rdma.Op { return b.CompareSwap(rdma.At(0, toyLock), 1, 0) })
	return err
}

func (s *toy) Get(key []byte) ([]byte, error) {
	if v, ok := s.cache[string(key)]; ok && s.flaw == "stale" {
		return v, nil
	}
	_, _, b, err := s.find(key)
	if err != nil {
		return nil, err
	}
	if b.gone {
		return nil, client.ErrNotFound
	}
	s.cache[string(key)] = b.value
	return b.value, nil
}

func (s *toy) Insert(key, value []byte) error {
	return s.locked(func() error { return s.change(key, append([]byte{}, value...), false, client.ErrExists) })
}

func (s *toy) Update(key, value []byte) error {
	return s.locked(func() error { return s.change(key, append([]byte{}, value...), true, client.ErrNotFound) })
}

func (s *toy) Delete(key []byte) error {
	return s.locked(func() error { return s.change(key, nil, true, client.ErrNotFound) })
}

func (s *toy) Close() error { return nil }

// toyCheck finds slots that point at no intact block, and keys with two slots.
func toyCheck(f rdma.Fabric) (r client.Report, err error) {
	ep, err := f.Open("check")
	if err != nil {
		return r, err
	}
	defer ep.Close()
	s := &toy{ep: ep}
	table, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, toyTable), 8*toySlots) })
	if err != nil {
		return r, err
	}
	seen := map[string]int{}
	for i := range toySlots {
		word := binary.LittleEndian.Uint64(table.Buf[8*i:])
		if word == 0 {
			continue
		}
		p, err := s.do(func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, word&(1<<48-1)), int(word>>48)) })
		if err != nil {
			return r, err
		}
		b, ok := decodeBlock(p.Buf)
		if !ok {
			r.Damage = append(r.Damage, fmt.Sprintf("slot %d points at garbage", i))
		} else if j, twice := seen[string(b.key)]; twice {
			r.Damage = append(r.Damage, fmt.Sprintf("key %q has slots %d and %d", b.key, j, i))
		}
		seen[string(b.key)] = i
	}
	return r, nil
}

func toyHarness(flaw string) Harness {
	h := Harness{
		Memory: 64 << 20, Format: toyFormat, Check: toyCheck, MaxKey: toyKey, MaxValue: toyValue, MinSeeds: 1000,
		Longest: 5 * time.Millisecond,
		Open: func(ep rdma.Endpoint) (client.Store, error) {
			return &toy{ep: ep, flaw: flaw, cache: map[string][]byte{}}, nil
		},
	}
	h.defaults()
	return h
}
