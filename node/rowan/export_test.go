package rowan

import "github.com/farkv/farkv/node/rdma"

// Seal returns an entry as a sender of a log would append it.
func Seal(mtu int, secret uint64, ring rdma.RingAddr, kind uint8, source uint16, stamp uint64, data []byte) []byte {
	l := newLayout(rdma.RingPromises{MTU: mtu}, secret, ring)
	p := make([]byte, l.sizeOf(len(data)))
	l.seal(p, header{kind: kind, source: source, length: len(data), stamp: stamp}, data)
	return p
}

// Released reports whether a segment was freed since it was used.
func (r *Receiver) Released(s Segment) bool {
	seg := r.segments[s.Index]
	return seg.state == free || seg.push != s.Push
}

// DoneAt returns the address of the word in which a remote log's writer says what it has finished.
func (t *Table) DoneAt(log int) rdma.Addr { return t.o.doneAt(log) }

// What tests of the table's words use.

func StateWord(st int, owner uint16, push uint64) uint64 {
	return stateWord(state(st), Owner(owner), push)
}

func ParseState(word uint64) (st int, owner uint16, push uint64, ok bool) {
	a, b, push, ok := parseState(word)
	return int(a), uint16(b), push, ok
}

func IsState(word uint64) bool {
	_, _, _, ok := parseState(word)
	return ok
}

func PutFloors(floors []uint64) []byte {
	p := make([]byte, 8*(len(floors)+1))
	putFloors(p, func(key int) uint64 { return floors[key] }, len(floors))
	return p
}

func ParseFloors(p []byte) (floors []uint64, ok bool) {
	floors = make([]uint64, len(p)/8-1)
	return floors, parseFloors(p, floors)
}

func (r *Receiver) Endpoint() rdma.Endpoint { return r.ep }

func (o Options) FloorAt(segment, key int) rdma.Addr {
	return o.withDefaults().recordAt(segment).Add(uint64(8 + 8*key))
}

func (o Options) GrantAt(source int) rdma.Addr { return o.withDefaults().grantAt(source) }
