package cm

import (
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/node/rowan/shards"
)

// Ask is the procedure by which the manager asks a server. The question is the term in the
// registers, the epoch of the view, and whether the term is committed:
//
//	term u64 | epoch u64 | committed u64
//
// The answer comes once the server serves in no earlier term than the one that it names:
//
//	term u64 | copied u16 | migrated u16 | loads u16 | flags u16
//	shard u16                                      a copy, a migration
//	shard u16 | requests u64 | writes u64          a load
//	shard u16 | sum u64 | weight u64               a digest: there are no loads then, and the flags say so
//	shard u16 | offset u64                         damage, to the end: there is some if the flags say so
//	text                                           why the server has ended, if the flags say so: there is nothing else
const (
	Ask = 0x7263 // "cr"

	questionBytes = 24
	answerBytes   = 16
	loadBytes     = 18
	damageBytes   = 10
	// Bounds of what a server reports at a time. They fit into a mailbox's buffer of boxBytes with the
	// header of rpc.
	maxReports = 256
	maxLoads   = 384
	maxDamages = 16
	boxBytes   = 8 << 10

	flagRestarted = 1
	flagFull      = 2
	flagDigests   = 4
	flagDamaged   = 8
	flagEnded     = 16
	maxReason     = 1000
)

// Report is what a server tells the manager. What is beyond 256 copies or migrations is told next
// time; the bound of loads is 384, several times the paper's shards of one server.
type Report struct {
	Copied   []int // shards that the server has copied: it is complete in this term
	Migrated []int // shards that migrate to the server: it has all that the source has
	Loads    []Load
	Full     bool // the server has no room for another shard
	// Digests are of all shards of which the server is a complete replica, once it has in a term that
	// compares them what others have given it. Beyond 384 others are told next time. With them there
	// are no loads.
	Digests []Digest
	// Damaged are shards of which the server has met an entry in this term that is not as it was
	// sealed. What is beyond 16 is told once these are no longer its own.
	Damaged []Damage
}

// Damage is an entry of a shard that is damaged, by its offset in the memory of the server's node.
type Damage struct {
	Shard  int
	Offset uint64
}

// Digest is that of a server's replica of a shard.
type Digest struct {
	Shard int
	shards.Digest
}

// Load counts what a shard's primary met since it knows of the shard. Counts only grow. There is
// none of a shard that the primary does not serve yet in its term.
type Load struct {
	Shard int
	shards.Load
}

// answer is what a server answers.
type answer struct {
	term uint64
	// restarted says that the term is the last one of an earlier server beside the node, and that it
	// serves in none.
	restarted bool
	ended     string // why the server has ended by itself; "": it has not
	Report
}

func (a *answer) encode() []byte {
	le := binary.LittleEndian
	if a.ended != "" {
		p := le.AppendUint64(le.AppendUint64(nil, a.term), flagEnded<<48)
		return append(p, a.ended[:min(len(a.ended), maxReason)]...)
	}
	copied, migrated := a.Copied[:min(len(a.Copied), maxReports)], a.Migrated[:min(len(a.Migrated), maxReports)]
	loads := a.Loads[:min(len(a.Loads), maxLoads)]
	p := le.AppendUint64(nil, a.term)
	flags := 0
	if a.restarted {
		flags |= flagRestarted
	}
	if a.Full {
		flags |= flagFull
	}
	if digests := a.Digests[:min(len(a.Digests), maxLoads)]; len(digests) > 0 {
		flags |= flagDigests
		loads = nil
		for _, d := range digests {
			loads = append(loads, Load{d.Shard, shards.Load{Requests: d.Sum, Writes: d.Weight}})
		}
	}
	damaged := a.Damaged[:min(len(a.Damaged), maxDamages)]
	if len(damaged) > 0 {
		flags |= flagDamaged
	}
	for _, n := range []int{len(copied), len(migrated), len(loads), flags} {
		p = le.AppendUint16(p, uint16(n))
	}
	for _, list := range [][]int{copied, migrated} {
		for _, shard := range list {
			p = le.AppendUint16(p, uint16(shard))
		}
	}
	for _, l := range loads {
		p = le.AppendUint16(p, uint16(l.Shard))
		p = le.AppendUint64(p, l.Requests)
		p = le.AppendUint64(p, l.Writes)
	}
	for _, d := range damaged {
		p = le.AppendUint16(p, uint16(d.Shard))
		p = le.AppendUint64(p, d.Offset)
	}
	return p
}

func decodeAnswer(p []byte) (*answer, error) {
	le := binary.LittleEndian
	bad := func() (*answer, error) { return nil, fmt.Errorf("an answer of %d bytes that no server gives", len(p)) }
	if len(p) < answerBytes {
		return bad()
	}
	flags := le.Uint16(p[14:])
	if le.Uint64(p[8:]) == flagEnded<<48 && len(p) > answerBytes {
		return &answer{term: le.Uint64(p), ended: string(p[answerBytes:])}, nil
	}
	a := &answer{term: le.Uint64(p), restarted: flags&flagRestarted != 0}
	a.Full = flags&flagFull != 0
	copied, migrated, loads := int(le.Uint16(p[8:])), int(le.Uint16(p[10:])), int(le.Uint16(p[12:]))
	damaged := len(p) - answerBytes - 2*(copied+migrated) - loadBytes*loads
	if flags > flagRestarted|flagFull|flagDigests|flagDamaged || flags&flagDigests != 0 && loads == 0 ||
		damaged < 0 || damaged%damageBytes != 0 || flags&flagDamaged != 0 != (damaged > 0) {
		return bad()
	}
	rest := p[answerBytes:]
	for range copied {
		a.Copied, rest = append(a.Copied, int(le.Uint16(rest))), rest[2:]
	}
	for range migrated {
		a.Migrated, rest = append(a.Migrated, int(le.Uint16(rest))), rest[2:]
	}
	for range loads {
		l := Load{int(le.Uint16(rest)), shards.Load{Requests: le.Uint64(rest[2:]), Writes: le.Uint64(rest[10:])}}
		a.Loads, rest = append(a.Loads, l), rest[loadBytes:]
	}
	for ; len(rest) > 0; rest = rest[damageBytes:] {
		a.Damaged = append(a.Damaged, Damage{int(le.Uint16(rest)), le.Uint64(rest[2:])})
	}
	if flags&flagDigests != 0 {
		for _, l := range a.Loads {
			a.Digests = append(a.Digests, Digest{l.Shard, shards.Digest{Sum: l.Requests, Weight: l.Writes}})
		}
		a.Loads = nil
	}
	return a, nil
}

// question is what the manager asks.
type question struct {
	term, epoch uint64
	committed   bool
}

func (q question) encode() []byte {
	le := binary.LittleEndian
	p := make([]byte, questionBytes)
	le.PutUint64(p, q.term)
	le.PutUint64(p[8:], q.epoch)
	if q.committed {
		p[16] = 1
	}
	return p
}

func decodeQuestion(p []byte) (q question, ok bool) {
	le := binary.LittleEndian
	if len(p) != questionBytes || le.Uint64(p[16:]) > 1 {
		return q, false
	}
	return question{le.Uint64(p), le.Uint64(p[8:]), p[16] == 1}, true
}
