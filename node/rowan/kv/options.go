package kv

import (
	"cmp"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// Options describe the servers of a pool: they are the same for all, and last as long as it does.
// Zero values mean defaults.
type Options struct {
	Kind Kind // of replication

	Nodes  int // memory nodes; a server runs beside each that the configuration has
	Shards int // of the configuration
	// Base is where a server's memory begins at its node, a multiple of rdma.Stride. Size says how
	// much it is.
	Base uint64
	// Log says how the log of each server is made: its segments, and its ring. Node, Base, Sources and
	// Urgent are the server's own.
	Log rowan.Options
	// Workers and Cleaners are how many tasks a server has of each, beside one that receives and
	// digests; 2 and 1 by default.
	Workers, Cleaners int
	// Boxes is the number of a server's first mailbox, in which it hears of the configuration
	// (cm.Options.Box); one for each worker is behind. 1 by default. Slots are how many requests each
	// has buffers for, 64 by default.
	Boxes, Slots int
	// PairBytes is how long a key and its value may be together, 4000 by default. KeyBytes is how long
	// a key may be, 200 by default: it is in the first block of its entry.
	PairBytes, KeyBytes int
	// Keys are how many keys a server has indexes for: more make them slower. 1 << 16 by default.
	Keys int
	// CommitEvery is how often servers tell each other what is on all replicas; 15 ms by default
	// (section 4.4).
	CommitEvery time.Duration
	// StepEvery is how often a server looks after its log, 50 µs by default: in less than it takes to
	// fill what is ahead. IdleEvery is how often it does so once nothing has been appended for a
	// while, and how often the tasks look that wait for others of the server; StepEvery by default.
	StepEvery, IdleEvery time.Duration
	// Percent is below how much of live entries a segment is cleaned; 75 by default (section 4.4).
	Percent int
	// Keep is how many segments PUTs leave free: for DELs, and for cleaners, which have two each for
	// themselves. 2 more than these by default.
	Keep int
	// Tombs is how many tombstones there are at least when a server looks for some to drop: as many as
	// take a thirty-second of the segments by default.
	Tombs int
	// FullAfter is for how long a write waits for room before it is refused; 5 ms by default.
	FullAfter time.Duration
	// Gather and GatherFor are for how many bytes, and how long, a worker gathers entries with Batch;
	// 256 and 5 µs by default (section 6.1).
	Gather    int
	GatherFor time.Duration
}

// WithDefaults returns o with defaults for what is zero.
func (o Options) WithDefaults() Options {
	o.Workers, o.Cleaners = cmp.Or(o.Workers, 2), cmp.Or(o.Cleaners, 1)
	o.Boxes, o.Slots = cmp.Or(o.Boxes, 1), cmp.Or(o.Slots, 64)
	o.PairBytes, o.KeyBytes, o.Keys = cmp.Or(o.PairBytes, 4000), cmp.Or(o.KeyBytes, 200), cmp.Or(o.Keys, 1<<16)
	o.CommitEvery, o.StepEvery = cmp.Or(o.CommitEvery, 15*time.Millisecond), cmp.Or(o.StepEvery, 50*time.Microsecond)
	o.IdleEvery = max(o.IdleEvery, o.StepEvery)
	o.Percent, o.FullAfter = cmp.Or(o.Percent, 75), cmp.Or(o.FullAfter, 5*time.Millisecond)
	o.Keep = cmp.Or(o.Keep, o.spared()+2)
	o.Gather, o.GatherFor = cmp.Or(o.Gather, 256), cmp.Or(o.GatherFor, 5*time.Microsecond)
	o.Log.Ahead = cmp.Or(o.Log.Ahead, 512)
	o.Log.Own = cmp.Or(o.Log.Own, o.Keep+o.Workers)
	o.Log.Least = cmp.Or(o.Log.Least, o.spared()+1)
	o.Tombs = cmp.Or(o.Tombs, o.strides()/32)
	return o
}

// spared is how many segments only cleaners take.
func (o Options) spared() int { return 2 * o.Cleaners }

// strides is how many entries the segments of a server have room for.
func (o Options) strides() int {
	return o.Log.Segments * cmp.Or(o.Log.SegmentBytes, 4<<20) / rdma.Stride
}

// Validate returns what is wrong with o on a fabric: the error wraps rdma.ErrAccess.
func (o Options) Validate(p rdma.RingPromises) error { return o.WithDefaults().check(p) }

// check is Validate of options with defaults.
func (o Options) check(p rdma.RingPromises) error {
	switch {
	case o.Nodes < 1 || o.Shards < 1 || o.Workers < 1 || o.Cleaners < 1:
		return fmt.Errorf("serve %d shards at %d nodes with %d workers and %d cleaners: want at least one of each: %w",
			o.Shards, o.Nodes, o.Workers, o.Cleaners, rdma.ErrAccess)
	case headBytes+o.KeyBytes > p.MTU:
		return fmt.Errorf("serve keys of %d bytes: want at most %d, with an MTU of %d: %w", o.KeyBytes, p.MTU-headBytes,
			p.MTU, rdma.ErrAccess)
	case o.message() > rdma.MaxMessage:
		return fmt.Errorf("serve pairs of %d bytes, which take messages of %d: want at most %d: %w", o.PairBytes, o.message(),
			rdma.MaxMessage, rdma.ErrAccess)
	case cmp.Or(o.Log.Credit, 128<<10) < 2*(o.message()+p.MTU) || cmp.Or(o.Log.SegmentBytes, 4<<20) < o.message():
		return fmt.Errorf("serve pairs of %d bytes with credit of %d and segments of %d: want at least %d and %d: %w",
			o.PairBytes, o.Log.Credit, o.Log.SegmentBytes, 2*(o.message()+p.MTU), o.message(), rdma.ErrAccess)
	case o.Log.Segments <= o.Log.Own || o.Log.Own < o.Keep+o.Workers:
		return fmt.Errorf("serve with %d of %d segments for own logs: want at least %d, and some for others': %w", o.Log.Own,
			o.Log.Segments, o.Keep+o.Workers, rdma.ErrAccess)
	case o.Kind >= kinds:
		return fmt.Errorf("serve with %s: %w", o.Kind, rdma.ErrAccess)
	case o.Kind != Rowan && o.log(0).Lent < o.leastLent():
		return fmt.Errorf("serve %s with %d segments ahead for %d logs: want at least %d for each: %w", o.Kind,
			min(o.Log.Ahead, o.Log.Segments-o.Log.Own), o.sharers(), o.leastLent(), rdma.ErrAccess)
	}
	return nil
}

// message is how long a message may be: a request, an answer, or an entry with the headers of its
// blocks.
func (o Options) message() int {
	const leastMTU = 256
	return rpcBytes + requestBytes + o.PairBytes + o.PairBytes/(leastMTU-rowan.HeaderBytes)*rowan.HeaderBytes + headBytes
}

// log describes the log of a node. Each worker of a server is two sources of it: one for PUTs, and
// an urgent one. Its exchanger is another urgent one.
func (o Options) log(node int) rowan.Options {
	l := o.Log
	l.Node, l.Base = node, o.Base+o.wordsBytes()
	if o.Kind != Rowan {
		return o.remote(l)
	}
	l.Sources, l.Urgent = 2*o.Nodes*o.Workers+o.Nodes, o.Nodes*o.Workers+o.Nodes
	return l
}

// source is that of a worker of a server, in the log of another.
func (o Options) source(node, worker int, urgent bool) uint16 {
	n := node*o.Workers + worker
	if urgent {
		n += o.Nodes * o.Workers
	}
	return uint16(n)
}

// exchange is the source that the exchanger of a server is, or its remote log.
func (o Options) exchange(node int) uint16 {
	if o.Kind != Rowan {
		logs, _ := o.logs()
		return uint16(logs + node)
	}
	return uint16(2*o.Nodes*o.Workers + node)
}

// Size returns how many bytes of each node's memory a server takes. They are zero before its first
// use.
func (o Options) Size() uint64 {
	o = o.WithDefaults()
	return o.wordsBytes() + o.log(0).Size()
}

// BoxOf returns the mailbox to send a request to that is for a key with a hash: of a write, that of
// the worker of a server that has the key; of a GET, those of all workers in turn. The options have
// their defaults.
func (o *Options) BoxOf(node int, proc uint16, hash uint64, turn uint) rdma.BoxAddr {
	worker := WorkerOf(hash, o.Workers)
	if proc == ProcGet {
		worker = int(turn % uint(o.Workers))
	}
	return rdma.BoxAt(node, o.Boxes+1+worker)
}

// Own returns how many segments are free of others' entries: those for own logs.
func (o Options) Own() int { return o.WithDefaults().Log.Own }

// EntryBytes returns how much of segments the entry of a pair takes, on a fabric with an MTU.
func EntryBytes(pair, mtu int) int {
	n, part := recordBytes+pair, mtu-rowan.HeaderBytes
	return rdma.RingPromises{MTU: mtu}.Taken(n + (n+part-1)/part*rowan.HeaderBytes)
}

// Tasks returns how many tasks a server has: each takes an identity.
func (o Options) Tasks() int {
	o = o.WithDefaults()
	return o.cleaner(o.Cleaners)
}

// MessageBytes returns how long a message may be.
func (o Options) MessageBytes() int { return o.WithDefaults().message() }

// Check returns why a server refuses a pair, as far as the lengths say: the error wraps
// rdma.ErrMessageSize. The options have their defaults.
func (o *Options) Check(key, value []byte) error {
	if len(key) > o.KeyBytes || len(key)+len(value) > o.PairBytes {
		return fmt.Errorf("key of %d bytes and value of %d: at most %d, and %d together: %w", len(key), len(value),
			o.KeyBytes, o.PairBytes, rdma.ErrMessageSize)
	}
	return nil
}
