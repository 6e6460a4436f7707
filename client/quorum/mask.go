package quorum

import "math/bits"

// MaxReplicas bounds the number of replicas, so that lists of them need no allocation.
const MaxReplicas = 7

// Mask is a set of replicas. Bit r is replica r, so MaxReplicas is at most 8.
type Mask uint8

// Only returns the set of one replica.
func Only(r int) Mask { return 1 << r }

// All returns the set of the first n replicas.
func All(n int) Mask { return 1<<n - 1 }

// Majority returns how many of n replicas a majority is. Any two of them have a replica in common.
func Majority(n int) int { return n/2 + 1 }

// Has reports whether a replica is in m.
func (m Mask) Has(r int) bool { return m>>r&1 != 0 }

// Len returns how many replicas are in m.
func (m Mask) Len() int { return bits.OnesCount8(uint8(m)) }
