// Package rowan is the log of Rowan (OSDI 2023, sections 3 and 4.3): many senders append entries to
// segments of one node's memory, one-sidedly, and land in them one behind the other in the order in
// which they arrive. The receiver's CPU only pushes segments, and finds later what is in them.
//
//	o := rowan.Options{Node: 0, Ring: 1, Segments: 64, Secret: secret}
//	s, err := rowan.NewSender(ep, rowan.SenderOptions{Log: o, Source: 3, Above: last})
//	err = s.Append(kind, data, time.Second) // one trip: it is in the receiver's memory
//
//	r, err := rowan.Open(ep, o)
//	err = r.Recover(digest)  // what an earlier receiver left
//	for {
//		err = r.Step()       // finds segments that are full, pushes others
//		for seg, ok := r.Next(); ok; seg, ok = r.Next() {
//			err = r.Digest(seg, digest)
//			...              // once none of its entries is needed:
//			r.Free(seg)
//		}
//	}
//
// README.md says what is relied on, and where it departs from the paper.
package rowan
