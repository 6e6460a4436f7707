package check

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Value identifies the bytes of a value: the worker and its n for bytes that MakeValue made, a hash
// for all others. 0 is no value.
type Value uint64

// MinValue is the smallest value that MakeValue makes, in bytes.
const MinValue = 8

const (
	foreign   = Value(1) << 63 // bytes that MakeValue did not make
	countBits = 24
	sizeBits  = 24
)

// MakeValue appends to dst the n-th value (from 1) of a worker, size bytes long. Its first word
// names worker, n and size, and all that follows is derived from it, so that a mixture of two
// values, a truncated one or an overwritten one is never taken for either.
func MakeValue(dst []byte, worker, n, size int) []byte {
	size = max(size, MinValue)
	if uint(worker) >= 1<<15 || uint(n) >= 1<<countBits || n == 0 || size >= 1<<sizeBits {
		panic(fmt.Sprintf("check: no value %d of %d bytes for worker %d", n, size, worker))
	}
	id := uint64(worker)<<(countBits+sizeBits) | uint64(n)<<sizeBits | uint64(size)
	dst = binary.LittleEndian.AppendUint64(dst, id)
	for i := MinValue; i < size; i++ {
		dst = append(dst, fill(id, i))
	}
	return dst
}

// fill is byte i of the value id. Each word differs from each other one, within the value and
// between values.
func fill(id uint64, i int) byte {
	x := (id + uint64(i/8)) * 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return byte(x >> (8 * (i % 8)))
}

// Identify tells which value p is.
func Identify(p []byte) Value {
	if len(p) >= MinValue {
		if id := binary.LittleEndian.Uint64(p); int(id&(1<<sizeBits-1)) == len(p) && Value(id)&foreign == 0 &&
			filled(id, p) {
			return Value(id)
		}
	}
	return Value(xxhash.Sum64(p)) | foreign
}

func filled(id uint64, p []byte) bool {
	for i := MinValue; i < len(p); i++ {
		if p[i] != fill(id, i) {
			return false
		}
	}
	return true
}

func (v Value) String() string {
	if v&foreign != 0 {
		return fmt.Sprintf("bytes:%x", uint64(v&^foreign)>>32)
	}
	return fmt.Sprintf("w%d.%d", v>>(countBits+sizeBits), v>>sizeBits&(1<<countBits-1))
}
