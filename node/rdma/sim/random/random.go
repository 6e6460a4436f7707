// Package random is what the model draws from: each worker's network has a generator of its own,
// and what must not move another draw is derived by Mix.
package random

import "math/rand/v2"

// Mix is the finaliser of SplitMix64.
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Generator is a source of draws. Seed it before use.
type Generator struct{ rand.PCG }

// UpTo returns a number in [0, n]. It draws nothing for n <= 0.
func (g *Generator) UpTo(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return int64(g.Uint64() % uint64(n+1))
}

// Chance is true with probability p. It draws nothing for p <= 0.
func (g *Generator) Chance(p float64) bool {
	return p > 0 && float64(g.Uint64()>>11)/(1<<53) < p
}
