package workloads

import "math/bits"

const (
	fnvOffset = 0xcbf29ce484222325
	fnvPrime  = 1099511628211
)

// hashKey is the FNV-1a hash of n, its highest byte first, without a sign: go-ycsb names its
// records by it.
func hashKey(n int64) uint64 {
	return hashScramble(int64(bits.ReverseBytes64(uint64(n))))
}

// hashScramble is the FNV-1a hash of n, its lowest byte first, without a sign: YCSB scatters
// popular items by it.
func hashScramble(n int64) uint64 {
	h := uint64(fnvOffset)
	for shift := 0; shift < 64; shift += 8 {
		h = (h ^ uint64(n)>>shift&0xff) * fnvPrime
	}
	return magnitude(h)
}

// magnitude is h without the sign it has as an int64. The least int64 stays itself there; here it
// keeps its bits, which a remainder takes as well as any others.
func magnitude(h uint64) uint64 {
	if int64(h) < 0 {
		return -h
	}
	return h
}
