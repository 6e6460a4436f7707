package kv

import (
	"cmp"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// Options describe the servers of a pool. They are the same for all servers, for as long as the
// pool lives. Zero values mean defaults.
type Options struct {
	Kind Kind // of replication

	// Nodes is the number of memory nodes; a server runs beside each one that is a member. Shards
	// is the number of shards of the configuration.
	Nodes  int
	Shards int
	// Base is the offset of a server's memory at its node, a multiple of rdma.Stride. Size returns
	// its length.
	Base uint64
	// Log describes each server's log: its segments, and its ring. The server sets Node, Base,
	// Sources and Urgent.
	Log rowan.Options
	// Workers and Cleaners are the numbers of these tasks, beside the one that receives and
	// digests. The defaults are 2 and 1.
	Workers, Cleaners int
	// Boxes is the number of a server's first mailbox, to which the manager sends (cm.Options.Box);
	// those of the workers follow. The default is 1. Slots is the number of requests for which each
	// mailbox has buffers, 64 by default.
	Boxes, Slots int
	// PairBytes bounds the length of a key and its value together, 4000 by default. KeyBytes bounds
	// the length of a key, 200 by default: a key must fit into the first block of its entry.
	PairBytes, KeyBytes int
	// Keys is the number of keys for which a server's indexes are sized. More keys make them
	// slower. The default is 1 << 16.
	Keys int
	// CommitEvery is how often servers read each other's CommitVers; 15 ms by default (section
	// 4.4).
	CommitEvery time.Duration
	// StepEvery is how often a server looks after its log, 50 µs by default. It must be less than
	// the time in which the segments ahead are filled. IdleEvery is how often it does so after a
	// while without appends, and how often its other tasks look that poll; StepEvery by default.
	StepEvery, IdleEvery time.Duration
	// Percent is the share of live bytes below which a segment is cleaned; 75 by default (section
	// 4.4).
	Percent int
	// Keep is how many segments PUTs leave free: for DELs, and for cleaners, which keep two each.
	// The default is 2 more than those of the cleaners.
	Keep int
	// Tombs is the number of tombstones from which on a server looks for some to drop. The default
	// is as many as fill a thirty-second of the segments.
	Tombs int
	// FullAfter is for how long a client repeats a write that finds no room, and a server waits for
	// the answer of another one; 5 ms by default. See Holds.
	FullAfter time.Duration
	// Gather and GatherFor bound, in bytes and in time, how long a worker of kind Batch gathers
	// entries; 256 and 5 µs by default (section 6.1).
	Gather    int
	GatherFor time.Duration
}

// Holds bounds how long a server keeps a write that waits for room, before it refuses it. It is
// short: a write that waits has a buffer of its worker's mailbox, and if all buffers were had by
// those, none would be left to DELs, which make room.
func (o *Options) Holds() time.Duration { return o.FullAfter / 100 }

// WithDefaults returns o with defaults for what is zero.
func (o Options) WithDefaults() Options {
	o.Workers, o.Cleaners = cmp.Or(o.Workers, 2), cmp.Or(o.Cleaners, 1)
	o.Boxes, o.Slots = cmp.Or(o.Boxes, 1), cmp.Or(o.Slots, 64)
	o.PairBytes, o.KeyBytes, o.Keys = cmp.Or(o.PairBytes, 4000), cmp.Or(o.KeyBytes, 200), cmp.Or(o.Keys, 1<<16)
	o.CommitEvery, o.StepEvery = cmp.Or(o.CommitEvery, 15*time.Millisecond), cmp.Or(o.StepEvery, 50*time.Microsecond)
	o.IdleEvery = max(o.IdleEvery, o.StepEvery)
	o.Percent, o.FullAfter = cmp.Or(o.Percent, 75), cmp.Or(o.FullAfter, 5*time.Millisecond)
	o.Keep = cmp.Or(o.Keep, o.Spared()+2)
	o.Gather, o.GatherFor = cmp.Or(o.Gather, 256), cmp.Or(o.GatherFor, 5*time.Microsecond)
	o.Log.Ahead = cmp.Or(o.Log.Ahead, 512)
	o.Log.Own = cmp.Or(o.Log.Own, o.Keep+o.Workers)
	o.Log.Least = cmp.Or(o.Log.Least, o.Spared()+1)
	o.Tombs = cmp.Or(o.Tombs, o.Strides()/32)
	return o
}

// Spared returns the number of segments that only cleaners take.
func (o Options) Spared() int { return 2 * o.Cleaners }

// Strides returns how many entries the segments of a server have room for at most.
func (o Options) Strides() int {
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
	case HeadBytes+o.KeyBytes > p.MTU:
		return fmt.Errorf("serve keys of %d bytes: want at most %d, with an MTU of %d: %w", o.KeyBytes, p.MTU-HeadBytes,
			p.MTU, rdma.ErrAccess)
	case o.LongestMessage() > rdma.MaxMessage:
		return fmt.Errorf("serve pairs of %d bytes, which take messages of %d: want at most %d: %w", o.PairBytes,
			o.LongestMessage(),
			rdma.MaxMessage, rdma.ErrAccess)
	case int(o.LeaveBytes()) < 2*(o.LongestMessage()+p.MTU) ||
		cmp.Or(o.Log.SegmentBytes, 4<<20) < o.LongestMessage():
		return fmt.Errorf("serve pairs of %d bytes with credit of %d and segments of %d: want at least %d and %d: %w",
			o.PairBytes, o.Log.Credit, o.Log.SegmentBytes, 2*(o.LongestMessage()+p.MTU), o.LongestMessage(),
			rdma.ErrAccess)
	case o.Log.Segments <= o.Log.Own || o.Log.Own < o.Keep+o.Workers:
		return fmt.Errorf("serve with %d of %d segments for own logs: want at least %d, and some for others': %w",
			o.Log.Own,
			o.Log.Segments, o.Keep+o.Workers, rdma.ErrAccess)
	case o.Kind >= kinds:
		return fmt.Errorf("serve with %s: %w", o.Kind, rdma.ErrAccess)
	case o.Kind != Rowan && o.LogOf(0).Lent < o.leastLent():
		return fmt.Errorf("serve %s with %d segments ahead for %d logs: want at least %d for each: %w", o.Kind,
			min(o.Log.Ahead, o.Log.Segments-o.Log.Own), o.sharers(), o.leastLent(), rdma.ErrAccess)
	}
	return nil
}

// LongestMessage returns the greatest length of a message: of a request, an answer, or an entry
// with the headers of its blocks. It assumes an MTU of 256, the least there is.
func (o Options) LongestMessage() int {
	const leastMTU = 256
	return rpcBytes + requestBytes + o.PairBytes + o.PairBytes/(leastMTU-rowan.HeaderBytes)*rowan.HeaderBytes +
		HeadBytes
}

// LogOf describes the log of a node. Each worker of each server is two of its sources: one for
// PUTs, and an urgent one. Each exchanger is another urgent source.
func (o Options) LogOf(node int) rowan.Options {
	l := o.Log
	l.Node, l.Base = node, o.Base+o.wordsBytes()
	if o.Kind != Rowan {
		return o.remote(l)
	}
	l.Sources, l.Urgent = 2*o.Nodes*o.Workers+o.Nodes, o.Nodes*o.Workers+o.Nodes
	return l
}

// WorkerSource returns the number of a worker's source in the logs of other servers.
func (o Options) WorkerSource(node, worker int, urgent bool) uint16 {
	n := node*o.Workers + worker
	if urgent {
		n += o.Nodes * o.Workers
	}
	return uint16(n)
}

// ExchangeSource returns the number of an exchanger's source, or of its remote log, at other
// servers.
func (o Options) ExchangeSource(node int) uint16 {
	if o.Kind != Rowan {
		logs, _ := o.RemoteLogs()
		return uint16(logs + node)
	}
	return uint16(2*o.Nodes*o.Workers + node)
}

// Size returns how many bytes of each node's memory a server takes. They must be zero before the
// first use.
func (o Options) Size() uint64 {
	o = o.WithDefaults()
	return o.wordsBytes() + o.LogOf(0).Size()
}

// BoxOf returns the mailbox of a server to which a request for a key is sent. A write goes to the
// worker that writes keys with the hash; GETs go to all workers in turn. The options have their
// defaults.
func (o *Options) BoxOf(node int, proc uint16, hash uint64, turn uint) rdma.BoxAddr {
	worker := WorkerOf(hash, o.Workers)
	if proc == ProcGet {
		worker = int(turn % uint(o.Workers))
	}
	return rdma.BoxAt(node, o.Boxes+1+worker)
}

// Own returns how many segments are kept for own logs.
func (o Options) Own() int { return o.WithDefaults().Log.Own }

// EntryBytes returns how many bytes of segments the entry of a pair takes, on a fabric with an MTU.
func EntryBytes(pair, mtu int) int {
	n, part := RecordBytes+pair, mtu-rowan.HeaderBytes
	return rdma.RingPromises{MTU: mtu}.Taken(n + (n+part-1)/part*rowan.HeaderBytes)
}

// Tasks returns the number of a server's tasks. Each of them takes an identity.
func (o Options) Tasks() int {
	o = o.WithDefaults()
	return o.CleanerReader(o.Cleaners)
}

// MessageBytes returns the greatest length of a message.
func (o Options) MessageBytes() int { return o.WithDefaults().LongestMessage() }

// Check returns an error if a server refuses a pair for its length: it wraps rdma.ErrMessageSize.
// The options have their defaults.
func (o *Options) Check(key, value []byte) error {
	if len(key) > o.KeyBytes || len(key)+len(value) > o.PairBytes {
		return fmt.Errorf("key of %d bytes and value of %d: at most %d, and %d together: %w", len(key), len(value),
			o.KeyBytes, o.PairBytes, rdma.ErrMessageSize)
	}
	return nil
}

// ReceiverReader returns the number of the task that receives, among the readers of entries that
// cleaners ask: workers have the numbers below it, as they are.
func (o Options) ReceiverReader() int { return o.Workers }

// ExchangerReader returns the number of the exchanger among these readers.
func (o Options) ExchangerReader() int { return o.Workers + 1 }

// CleanerReader returns the number of a cleaner among these readers. There are no others.
func (o Options) CleanerReader(number int) int { return o.Workers + 2 + number }

// LocalTimeout bounds verbs at the server's own node. The server cannot go on without them.
const LocalTimeout = 10 * time.Second
