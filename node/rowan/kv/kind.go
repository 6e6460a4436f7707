package kv

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// Kind is how the servers of a pool replicate writes: as Rowan-KV does, or as one of the stores
// that the paper compares it with (section 6.1). All else is the same.
type Kind uint8

const (
	// Rowan appends to one ring a server.
	// Rowan appends to one ring at each backup.
	Rowan Kind = iota
	// RPC sends messages: a worker of the backup appends to a log of its own.
	RPC
	// RWrite writes to logs in the backup's memory, one for each worker of each other server.
	RWrite
	// Batch is RWrite, but gathers entries for a short time, so that one WRITE takes several.
	Batch
	// Share is RWrite, with one log for each other server, which that server's workers share.
	Share
	kinds
)

var kindNames = [kinds]string{"rowan", "rpc-kv", "rwrite-kv", "batch-kv", "share-kv"}

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Rowan, RPC, RWrite, Batch, Share} }

// String returns the name of a kind's stores.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind returns the kind with a name.
func ParseKind(name string) (Kind, error) {
	for _, k := range Kinds() {
		if k.String() == name {
			return k, nil
		}
	}
	return 0, fmt.Errorf("no kind of replication %q: there are %s", name, strings.Join(kindNames[:], ", "))
}

// RemoteLogs returns how many remote logs a node's memory has for workers, and writers how many of
// these are written to: with RPC all of them are, otherwise a server's workers do not write to its
// own node. Behind these logs is one for the exchanger of each server.
func (o Options) RemoteLogs() (logs, writers int) {
	switch o.Kind {
	case RPC:
		return o.Workers, o.Workers
	case Share:
		return o.Nodes, o.Nodes - 1
	case RWrite, Batch:
		return o.Nodes * o.Workers, (o.Nodes - 1) * o.Workers
	}
	return 0, 0
}

// WriterOf returns the server that writes to a remote log of a node.
func (o Options) WriterOf(node, log int) int {
	switch logs, _ := o.RemoteLogs(); {
	case log >= logs:
		return log - logs
	case o.Kind == RPC:
		return node
	case o.Kind == Share:
		return log
	}
	return log / o.Workers
}

// sharers returns how many remote logs of a node share the segments ahead.
func (o Options) sharers() int {
	_, writers := o.RemoteLogs()
	return max(1, writers+o.Nodes-1)
}

// UrgentSegments returns how many segments of a remote log are kept for DELs.
func (o Options) UrgentSegments() int {
	return min(max(1, o.Log.Reserve/o.sharers()), o.LogOf(0).Lent-o.leastLent()+1)
}

// remote adapts a node's log options to a kind with remote logs. These logs share the segments that
// a ring would have ahead.
func (o Options) remote(l rowan.Options) rowan.Options {
	logs, _ := o.RemoteLogs()
	l.Sources, l.Urgent = 1, 0
	l.Remotes, l.Lent = logs+o.Nodes, min(l.Ahead, l.Segments-l.Own)/o.sharers()
	return l
}

// leastLent returns how many segments a remote log needs at least: one that is filled, one for
// DELs, and the next one for PUTs. With RPC the last is instead the room for the leave of all other
// servers.
func (o Options) leastLent() int {
	if o.Kind != RPC {
		return 3
	}
	return 2 + max(1, ((o.Nodes-1)*int(o.LeaveBytes())+o.LentRoom()-1)/o.LentRoom())
}

// LentRoom returns how many bytes of a segment are certain to hold entries: the rest may be too
// short for one.
func (o Options) LentRoom() int {
	return cmp.Or(o.Log.SegmentBytes, 4<<20) - int(EntrySize(RecordBytes+o.PairBytes)) + rdma.Stride
}

// LeastAhead returns how many segments must be ahead with a kind that has remote logs. It returns 0
// for a kind with a ring.
func (o Options) LeastAhead() int {
	if o.Kind == Rowan {
		return 0
	}
	o = o.WithDefaults()
	return o.sharers() * o.leastLent()
}

// LeaveBytes returns how many bytes a worker may have leave to append at a backup at a time.
func (o Options) LeaveBytes() uint64 { return uint64(cmp.Or(o.Log.Credit, 128<<10)) }

// StepWrite is the step of the WRITE to a log in a backup's memory, with the READ behind it.
const StepWrite rdma.Step = "write to backup"
