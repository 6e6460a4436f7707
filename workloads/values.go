package workloads

import (
	"encoding/binary"
	"strconv"
)

// fillRandom fills b with printable bytes that follow from seed (a step of SplitMix64 for eight of
// them), as cheap as they can be: their content measures nothing, but no two values should be
// equal.
func fillRandom(b []byte, seed uint64) {
	const printable = 0x2020202020202020 // ' ' to '_', as YCSB's
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, mix(&seed)&0x3f3f3f3f3f3f3f3f+printable)
		b = b[8:]
	}
	for i, x := 0, mix(&seed); i < len(b); i, x = i+1, x>>8 {
		b[i] = byte(x&0x3f) + ' '
	}
}

func mix(state *uint64) uint64 {
	*state += 0x9e3779b97f4a7c15
	x := *state
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// appendExpected appends the n bytes that a field has under dataintegrity: the key, the field's
// name, and hashes of all that stands before them, cut at n. Those are go-ycsb's values, and YCSB's
// idea.
func appendExpected(b, key []byte, field, n int) []byte {
	start := len(b)
	b = append(b, key...)
	b = append(b, ':')
	b = appendField(b, field)
	h, hashed := uint64(fnvOffset), start
	for len(b)-start < n {
		b = append(b, ':')
		for _, c := range b[hashed:] {
			h = (h ^ uint64(c)) * fnvPrime
		}
		hashed = len(b)
		b = strconv.AppendUint(b, h, 10)
	}
	return b[:start+n]
}

func appendField(b []byte, field int) []byte {
	return strconv.AppendInt(append(b, "field"...), int64(field), 10)
}
