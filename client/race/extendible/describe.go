package extendible

import (
	"fmt"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Describe returns a function that says what lies at an address of the pool that
// ep reaches.
// The text is that of the layout alone: it reads nothing but the header of the
// pool.
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, fmt.Errorf("describe a pool of RACE hashing: %w", err)
	}
	return l.describe, nil
}

// describe says what lies at an address; "" where nothing does.
func (l *layout) describe(a rdma.Addr) string {
	off, n := a.Offset(), a.Node()
	switch {
	case off < node.HeaderBytes:
		return "header"
	case off < l.records:
		return l.describeEntry(a)
	case off < l.subtables.Table:
		return fmt.Sprintf("delete record of client %d", (off-l.records)/unitBytes*uint64(l.nodes)+uint64(n))
	case off < l.pairs.Table:
		return fmt.Sprintf("owner of subtable %d", (off-l.subtables.Table)/8)
	case off < l.subtables.First:
		return fmt.Sprintf("owner of chunk %d", (off-l.pairs.Table)/8)
	case off < l.pairs.First:
		in := off - l.subtables.First
		word := race.Slot(in % l.subtables.Bytes / bytesPerWord)
		what := "slot"
		if !race.IsSlot(word) {
			what = "header"
		}
		return fmt.Sprintf("%s %d of subtable %d", what, word, in/l.subtables.Bytes)
	case off < l.pairs.End():
		in := off - l.pairs.First
		return fmt.Sprintf("pair %d of chunk %d", in%l.pairs.Bytes/l.blockBytes, in/l.pairs.Bytes)
	}
	return ""
}

// describeEntry says what lies at an address of the directory.
func (l *layout) describeEntry(a rdma.Addr) string {
	text := ""
	switch l.format {
	case RTX:
		text = l.objects.Describe(a)
	case DTX:
		text = l.places.Describe(a)
	default:
		text = fmt.Sprintf("entry of suffix %d", (a.Offset()-node.HeaderBytes)/8*uint64(l.nodes)+uint64(a.Node()))
	}
	if text == "" {
		return ""
	}
	return "directory: " + text
}
