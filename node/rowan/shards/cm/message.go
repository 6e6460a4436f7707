package cm

import (
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/node/rowan/shards"
)

// Ask is the procedure by which the manager asks a server. The question has the term in the
// registers, the epoch of the view, and whether the term is committed:
//
//	term u64 | epoch u64 | committed u64
//
// The server answers once it serves in no earlier term than the one in its answer:
//
//	term u64 | copied u16 | migrated u16 | loads u16 | flags u16
//	shard u16                                      a copy, a migration
//	shard u16 | requests u64 | writes u64          a load
//	shard u16 | sum u64 | terms u64 | versions u64 a digest instead of a load, by the flags
//	shard u16 | offset u64                         damage, to the end, by the flags
//	text                                           why the server has ended, by the flags; no more
const (
	Ask = 0x7263 // "cr"

	questionBytes = 24
	answerBytes   = 16
	loadBytes     = 18
	digestBytes   = 26
	damageBytes   = 10
	// Bounds of one report. It fits into a mailbox's buffer of boxBytes, with the header of package
	// rpc: 16 bytes of that, 16, two lists of 512, 6,912 of loads and 160 of damage are 8,128.
	maxReports = 256
	maxLoads   = 384
	maxDigests = 256 // 6,656 bytes, instead of loads
	maxDamages = 16
	boxBytes   = 8 << 10

	flagRestarted = 1
	flagFull      = 2
	flagDamaged   = 8
	flagEnded     = 16
	flagDigests   = 32 // 4 was of digests without terms: two formats cannot be compared
	maxReason     = 1000
)

// Report is what a server tells the manager. If there are more than 256 copies or migrations, the
// rest is reported next time. Loads are bounded by 384, several times the paper's number of shards
// of one server.
type Report struct {
	// Shards that the server has copied: it is complete in this term.
	Copied []int
	// Shards that migrate to the server: it has all that the source has.
	Migrated []int
	// Loads of the shards that the server serves.
	Loads []Load
	// The server has no room for another shard.
	Full bool
	// Digests of all shards of which the server is a complete replica, in a term that compares
	// them, once it has what others gave it. If there are more than 256, the others are reported
	// next time. There are no loads with them.
	Digests []Digest
	// Damaged lists shards of which the server has met a damaged entry in this term. If there are
	// more than 16, the rest is reported once the server has lost those.
	Damaged []Damage
}

// Damage is a damaged entry of a shard, by its offset in the memory of the server's node.
type Damage struct {
	Shard  int
	Offset uint64
}

// Digest is the digest of a server's replica of a shard.
type Digest struct {
	Shard int
	shards.Digest
}

// Load is what a shard's primary has counted since it knows of the shard. Counts only grow. A
// primary that does not serve the shard in this term yet has none.
type Load struct {
	Shard int
	shards.Load
}

// answer is a server's answer.
type answer struct {
	term uint64
	// restarted means that term is the last one of an earlier server beside the node, and that this
	// server serves in none.
	restarted bool
	// Why the server has ended by itself; "": it has not.
	ended string
	Report
}

// encode returns the message. What exceeds the bounds is left out. See Report for when the rest is
// reported. Loads that are left out never are: their shards count as idle.
func (a *answer) encode() []byte {
	le := binary.LittleEndian
	if a.ended != "" {
		p := le.AppendUint64(le.AppendUint64(nil, a.term), flagEnded<<48)
		return append(p, a.ended[:min(len(a.ended), maxReason)]...)
	}
	copied, migrated := a.Copied[:min(len(a.Copied), maxReports)], a.Migrated[:min(len(a.Migrated), maxReports)]
	loads, digests := a.Loads[:min(len(a.Loads), maxLoads)], a.Digests[:min(len(a.Digests), maxDigests)]
	p := le.AppendUint64(nil, a.term)
	flags := 0
	if a.restarted {
		flags |= flagRestarted
	}
	if a.Full {
		flags |= flagFull
	}
	if len(digests) > 0 {
		flags |= flagDigests
		loads = nil
	}
	damaged := a.Damaged[:min(len(a.Damaged), maxDamages)]
	if len(damaged) > 0 {
		flags |= flagDamaged
	}
	for _, n := range []int{len(copied), len(migrated), len(loads) + len(digests), flags} {
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
	for _, d := range digests {
		p = le.AppendUint16(p, uint16(d.Shard))
		for _, sum := range []uint64{d.Sum, d.Terms, d.Versions} {
			p = le.AppendUint64(p, sum)
		}
	}
	for _, d := range damaged {
		p = le.AppendUint16(p, uint16(d.Shard))
		p = le.AppendUint64(p, d.Offset)
	}
	return p
}

// decodeAnswer decodes an answer. The bounds are checked before anything is read.
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
	copied, migrated, loads, digests := int(le.Uint16(p[8:])), int(le.Uint16(p[10:])), int(le.Uint16(p[12:])), 0
	if flags&flagDigests != 0 { // an answer has one or the other, and their count in one place
		loads, digests = 0, loads
	}
	damaged := len(p) - answerBytes - 2*(copied+migrated) - loadBytes*loads - digestBytes*digests
	if flags&^(flagRestarted|flagFull|flagDamaged|flagDigests) != 0 || flags&flagDigests != 0 != (digests > 0) ||
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
	for range digests {
		d := shards.Digest{Sum: le.Uint64(rest[2:]), Terms: le.Uint64(rest[10:]), Versions: le.Uint64(rest[18:])}
		a.Digests, rest = append(a.Digests, Digest{int(le.Uint16(rest)), d}), rest[digestBytes:]
	}
	for ; len(rest) > 0; rest = rest[damageBytes:] {
		a.Damaged = append(a.Damaged, Damage{int(le.Uint16(rest)), le.Uint64(rest[2:])})
	}
	return a, nil
}

// question is the manager's question.
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

// decodeQuestion decodes a question. It reports false for anything else.
func decodeQuestion(p []byte) (q question, ok bool) {
	le := binary.LittleEndian
	if len(p) != questionBytes || le.Uint64(p[16:]) > 1 {
		return q, false
	}
	return question{le.Uint64(p), le.Uint64(p[8:]), p[16] == 1}, true
}
