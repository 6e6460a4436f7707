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
