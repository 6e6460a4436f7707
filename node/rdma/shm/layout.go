package shm

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
)

// Geometry is the shape of a pool.
type Geometry rdma.Geometry

// What a geometry may be at most: far above use, and small enough that no sum of it overflows.
// 256 nodes of 16 TB, twice for telemetry, are less than 2^54 bytes.
const (
	MaxNodes   = 256
	MaxMemory  = 1 << 44 // bytes a node
	MaxClients = 1<<16 - 1
)

// A page is the unit of the mapping, and a slot one line of a processor's cache. Numbers are of
// the machine's own byte order: its processes alone use the pool. Another layout needs another
// version; there is no way from one to another.
const (
	page     = 4 << 10
	magic    = 0x306c6f6f706b7266 // "frkpool0", little-endian
	version  = 3
	slotSize = 64
	headSize = 6 * 8 // bytes that encode writes and parse reads
)

// header is the first page of a pool. The words of its first line never change once the pool
// exists. role, epoch, state, config and members change by CAS alone, or by an atomic OR or ADD:
// each process may change them at any time. A swap of the configuration holds a lock besides, under
// which configBytes are written, each before config names its half. members, which each op
// reads, share no line with role, which a master renews.
type header struct {
	magic, version uint64
	nodes          uint64
	memory         uint64 // bytes a node, with those of telemetry
	clients        uint64
	telemetry      uint64 // of them, behind the store's
	_              [2]uint64
	role, epoch    uint64 // the master: see TryMaster
	state          uint64 // of the view: see viewWord
	config         uint64 // see configWord
	configBytes    [2]uint64
	_              [114]uint64
	members        [MaxNodes]uint64 // of the view, by node; and downBit
	_              [128]uint64
}

// slot is one client's line. Its own cache line, since busy changes twice a Post. state, busy and
// name are written only under the slot's lock. Any process raises fence and stale, which only
// grow. The lock is that of lives. When it is free, nothing is executed by the slot's holder any
// more. pid is changed by a CAS of CrashClient, too, without the lock.
type slot struct {
	state uint64   // its holder's life, counted from 1, times 2; and 1 until that life is closed or forgotten
	busy  uint64   // odd while its holder executes verbs, and one more at each begin and end
	fence uint64   // the last life that was fenced off: a revocation that comes late hits no successor
	stale uint64   // the epoch that its holder must have joined: see Fence
	pid   uint64   // and the step at which it is to crash: see crashAt
	name  [24]byte // padded with zeros
}

// inUse reports whether a slot in that state has a holder: a live one, or a dead one of which the
// memory waits for recovery.
func inUse(state uint64) bool { return state&1 != 0 }

// life returns which life a slot in that state has seen last.
func life(state uint64) uint64 { return state >> 1 }

const (
	_ = -(unsafe.Sizeof(header{}) ^ page)
	_ = -(unsafe.Sizeof(slot{}) ^ slotSize)
)

// check tells what is wrong with g. A geometry that passes has sizes that fit in an int64.
func (g Geometry) check() error {
	switch {
	case g.Nodes < 1 || g.Nodes > MaxNodes:
		return fmt.Errorf("%d memory nodes: want 1 to %d", g.Nodes, MaxNodes)
	case g.Memory < 8 || g.Memory > MaxMemory || g.Memory%8 != 0:
		return fmt.Errorf("%d bytes a node: want a multiple of 8 up to %d", g.Memory, uint64(MaxMemory))
	case g.Telemetry > MaxMemory || g.Telemetry%8 != 0:
		return fmt.Errorf("%d bytes of telemetry a node: want a multiple of 8 up to %d", g.Telemetry, uint64(MaxMemory))
	case g.Clients < 1 || g.Clients > MaxClients:
		return fmt.Errorf("%d clients: want 1 to %d", g.Clients, MaxClients)
	}
	return nil
}

// pages returns n up to whole pages.
func pages(n uint64) uint64 { return (n + page - 1) &^ (page - 1) }

// registered is how many bytes of a node verbs may touch: the store's and those of telemetry.
func (g Geometry) registered() uint64 { return rdma.Geometry(g).Registered() }

// config is where the two halves of the store's configuration begin. It is a whole number of
// pages, as what follows.
func (g Geometry) config() uint64 { return page + pages(uint64(g.Clients)*slotSize) }

// first is where the memory of node 0 begins, and stride how far the nodes lie apart.
func (g Geometry) first() uint64  { return g.config() + 2*rdma.MaxConfig }
func (g Geometry) stride() uint64 { return pages(g.registered()) }

// size is the length of the whole mapping in bytes.
func (g Geometry) size() uint64 { return g.first() + uint64(g.Nodes)*g.stride() }

// slotOffset is where the slot of a client lies, and which byte of the file its lock is on. For
// 0, which is no client, that is a byte of the header's unused end.
func slotOffset(c rdma.ClientID) int64 { return page + (int64(c)-1)*slotSize }

// encode writes what identifies a pool into the first bytes of its mapping. p has headSize bytes
// at least: it is the file's beginning, before any other process can see it, or that of an
// anonymous mapping.
func (g Geometry) encode(p []byte) {
	for i, w := range []uint64{magic, version, uint64(g.Nodes), g.registered(), uint64(g.Clients), g.Telemetry} {
		binary.NativeEndian.PutUint64(p[8*i:], w)
	}
}

// parse reads what identifies a pool from the first bytes of a file of the given length. It
// trusts none of them. What it returns has passed check, and fits the length: a mapping of that
// size has a file behind all of it, unless the file is truncated later. The errors wrap
// ErrFormat.
func parse(p []byte, length int64) (Geometry, error) {
	if len(p) < headSize {
		return Geometry{}, fmt.Errorf("%w: %d bytes are too short for a header", ErrFormat, length)
	}
	var w [headSize / 8]uint64
	for i := range w {
		w[i] = binary.NativeEndian.Uint64(p[8*i:])
	}
	switch {
	case w[0] != magic:
		return Geometry{}, fmt.Errorf("%w: it begins with %#x", ErrFormat, w[0])
	case w[1] > version:
		return Geometry{}, fmt.Errorf("%w of this version: its format is %d, and the newest known here is %d",
			ErrFormat, w[1], version)
	case w[1] < version:
		return Geometry{}, fmt.Errorf("%w: it has no format %d", ErrFormat, w[1])
	// Within these bounds the conversions and the difference below change no value.
	case w[2] > MaxNodes || w[4] > MaxClients || w[5] > w[3]:
		return Geometry{}, fmt.Errorf("%w: damaged header: %d nodes of %d bytes, %d of them telemetry, %d clients",
			ErrFormat, w[2], w[3], w[5], w[4])
	}
	g := Geometry{Nodes: int(w[2]), Memory: w[3] - w[5], Clients: int(w[4]), Telemetry: w[5]}
	if err := g.check(); err != nil {
		return Geometry{}, fmt.Errorf("%w: damaged header: %w", ErrFormat, err)
	}
	if length < 0 || uint64(length) < g.size() {
		return Geometry{}, fmt.Errorf("%w any more: it was truncated to %d bytes of %d", ErrFormat, length, g.size())
	}
	return g, nil
}
