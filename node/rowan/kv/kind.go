package kv

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// Kind is how the servers of a pool replicate writes: as Rowan-KV does, or as the stores that it is
// measured against (section 6.1). All else is the same.
type Kind uint8

const (
	// Rowan appends to one ring a server.
	Rowan Kind = iota
	// RPC sends messages: a worker of the backup appends to a log of its own.
	RPC
	// RWrite writes to logs in the backup's memory, one for each worker of another server.
	RWrite
	// Batch is RWrite, and gathers entries for a while, so that one WRITE takes several.
	Batch
	// Share is RWrite with one log for each other server, which its workers share.
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

// logs is how many remote logs a node's memory has for workers, and writers how many of them write
// there: a server's workers do not write to its own node, but with RPC. Behind these is one for the
// exchanger of each server.
func (o Options) logs() (logs, writers int) {
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

// writer returns the server that writes to a remote log of a node.
func (o Options) writer(node, log int) int {
	switch logs, _ := o.logs(); {
	case log >= logs:
		return log - logs
	case o.Kind == RPC:
		return node
	case o.Kind == Share:
		return log
	}
	return log / o.Workers
}

// sharers is how many remote logs of a node share what is ahead.
func (o Options) sharers() int {
	_, writers := o.logs()
	return max(1, writers+o.Nodes-1)
}

// urgent is how many segments of a remote log are for DELs.
func (o Options) urgent() int {
	return min(max(1, o.Log.Reserve/o.sharers()), o.log(0).Lent-o.leastLent()+1)
}

// remote describes the logs of a node for a kind that has remote ones: these share what a ring had.
func (o Options) remote(l rowan.Options) rowan.Options {
	logs, _ := o.logs()
	l.Sources, l.Urgent = 1, 0
	l.Remotes, l.Lent = logs+o.Nodes, min(l.Ahead, l.Segments-l.Own)/o.sharers()
	return l
}

// leastLent is how many segments a remote log has at least: one that is filled, one for DELs, and
// the next for PUTs. With RPC what all other servers have leave for is there, instead of the
// latter.
func (o Options) leastLent() int {
	if o.Kind != RPC {
		return 3
	}
	return 2 + max(1, ((o.Nodes-1)*int(o.credit())+o.lentRoom()-1)/o.lentRoom())
}

// lentRoom is how much of a segment is for entries for sure.
func (o Options) lentRoom() int {
	return cmp.Or(o.Log.SegmentBytes, 4<<20) - int(entrySize(recordBytes+o.PairBytes)) + rdma.Stride
}

// LeastAhead returns how many segments have to be ahead with a kind that has remote logs; 0: it has
// a ring.
func (o Options) LeastAhead() int {
	if o.Kind == Rowan {
		return 0
	}
	o = o.WithDefaults()
	return o.sharers() * o.leastLent()
}

// credit is how many bytes a worker has leave to append at a backup at a time, at most.
func (o Options) credit() uint64 { return uint64(cmp.Or(o.Log.Credit, 128<<10)) }

// newReplication returns that of a worker, which has its peer.
func (w *worker) newReplication() replication {
	switch w.s.o.Kind {
	case RPC:
		return newCalls(w)
	case RWrite, Batch, Share:
		return newWrites(w)
	}
	return newRings(w)
}

// newInbound returns what receives at a server.
func (s *Server) newInbound(ep rdma.Endpoint) (inbound, error) {
	if s.o.Kind == Rowan {
		return s.table.Receiver(ep)
	}
	return s.table.Lender(ep)
}
