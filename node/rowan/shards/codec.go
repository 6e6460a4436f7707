package shards

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// The binary form of a configuration is a header, the members, and the shards, little-endian. A
// shard names servers by their places among the members, in the order primary, source, backups,
// those that copy.
//
//	format u16 | state u8 | replication u8 | members u16 | 0 u16 | term u64 | shards u32 | 0 u32
//	node u16 | since u32                     a member
//	shape u8 | place u8 ...                  a shard
const (
	format      = 1
	headerBytes = 24
	memberBytes = 6
	// A shard's shape: the number of backups in the lowest bits, the number of those that copy
	// above it, and whether it has a primary and a source.
	countBits  = 3
	countMask  = 1<<countBits - 1
	hasPrimary = 1 << 6
	hasSource  = 1 << 7
	// Bits of a configuration's state.
	isCommitted = 1 << 0
	compares    = 1 << 1
)

// ErrFormat is wrapped when bytes are no configuration, or one of another format.
var ErrFormat = errors.New("no configuration of this format")

// Bound returns the greatest length of a configuration in bytes. A shard has one replica more than
// its replication while it moves. 48 shards with 3 replicas for each of MaxMembers servers take
// 63,000 bytes, and rdma.MaxConfig is 65,536. It is the bound of all configurations that can
// follow, not of one: New refuses a pool that could outgrow the registers.
func Bound(members, shards, replication int) int {
	return headerBytes + members*memberBytes + shards*(1+replication+1)
}

// Encode returns the binary form. It has at most rdma.MaxConfig bytes if New made the first
// configuration of the pool. Encode panics if Check fails: rules never return such a configuration.
//
// A place fits into its byte since there are at most MaxMembers, and both counts of a shape into
// theirs since there are at most MaxReplicas. Equal configurations have equal bytes.
func (c *Config) Encode() []byte {
	if err := c.Check(); err != nil {
		panic(fmt.Sprintf("shards: encode a configuration: %v", err))
	}
	le := binary.LittleEndian
	p := make([]byte, 0, Bound(len(c.Members), len(c.Shards), c.Replication))
	p = le.AppendUint16(p, format)
	state := byte(0)
	if c.Committed {
		state |= isCommitted
	}
	if c.Compare {
		state |= compares
	}
	p = append(p, state, byte(c.Replication))
	p = le.AppendUint32(p, uint32(len(c.Members)))
	p = le.AppendUint64(p, c.Term)
	p = le.AppendUint64(p, uint64(len(c.Shards)))
	for _, m := range c.Members {
		p = le.AppendUint16(p, uint16(m.Node))
		p = le.AppendUint32(p, uint32(m.Since))
	}
	for i := range c.Shards {
		s := &c.Shards[i]
		shape := byte(len(s.Backups)) | byte(len(s.Copying))<<countBits
		if !s.Lost() {
			shape |= hasPrimary
		}
		if s.Source != None {
			shape |= hasSource
		}
		p = append(p, shape)
		for _, n := range s.Replicas() {
			place, _ := c.index(n)
			p = append(p, byte(place))
		}
	}
	return p
}

// Decode returns the configuration that Encode encoded. For all other bytes the error wraps
// ErrFormat.
func Decode(p []byte) (*Config, error) {
	c, err := decode(p)
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("read a configuration of %d bytes: %w: %w", len(p), ErrFormat, err)
	}
	return c, nil
}

// decode checks lengths and bounds only, so that nothing in p can make it panic or allocate much.
// Bytes may be of another program, so what the fields mean together is for Check.
func decode(p []byte) (*Config, error) {
	le := binary.LittleEndian
	if len(p) < headerBytes || len(p) > rdma.MaxConfig {
		return nil, fmt.Errorf("want %d to %d", headerBytes, rdma.MaxConfig)
	}
	if f := le.Uint16(p); f != format {
		return nil, fmt.Errorf("format %d, want %d", f, format)
	}
	members, shards := le.Uint32(p[4:]), le.Uint64(p[16:])
	if p[2] > isCommitted|compares || members > MaxMembers || shards > MaxShards {
		return nil, fmt.Errorf("state %d, %d members, %d shards", p[2], members, shards)
	}
	c := &Config{
		Term: le.Uint64(p[8:]), Committed: p[2]&isCommitted != 0, Compare: p[2]&compares != 0, Replication: int(p[3]),
	}
	p = p[headerBytes:]
	if uint64(len(p)) < uint64(members)*memberBytes+shards {
		return nil, fmt.Errorf("too short for %d members and %d shards", members, shards)
	}
	for range members {
		c.Members = append(c.Members, Member{int(le.Uint16(p)), uint64(le.Uint32(p[2:]))})
		p = p[memberBytes:]
	}
	c.Shards = make([]Shard, shards)
	for i := range c.Shards {
		var err error
		if p, err = c.decodeShard(&c.Shards[i], p); err != nil {
			return nil, fmt.Errorf("shard %d: %w", i, err)
		}
	}
	if len(p) > 0 {
		return nil, fmt.Errorf("%d bytes behind the last shard", len(p))
	}
	return c, nil
}

// decodeShard reads one shard and returns the bytes behind it.
func (c *Config) decodeShard(s *Shard, p []byte) ([]byte, error) {
	if len(p) == 0 {
		return nil, errors.New("it is missing")
	}
	shape := p[0]
	backups, copying := int(shape&countMask), int(shape>>countBits&countMask)
	var heads []*int
	s.Primary, s.Source = None, None
	if shape&hasPrimary != 0 {
		heads = append(heads, &s.Primary)
	}
	if shape&hasSource != 0 {
		heads = append(heads, &s.Source)
	}
	n := 1 + len(heads) + backups + copying
	if len(p) < n {
		return nil, errors.New("it is cut short")
	}
	nodes := make([]int, 0, n)
	for _, place := range p[1:n] {
		if int(place) >= len(c.Members) {
			return nil, fmt.Errorf("member %d of %d", place, len(c.Members))
		}
		nodes = append(nodes, c.Members[place].Node)
	}
	for i, at := range heads {
		*at = nodes[i]
	}
	nodes = nodes[len(heads):]
	s.Backups, s.Copying = slices.Clone(nodes[:backups]), slices.Clone(nodes[backups:])
	return p[n:], nil
}
