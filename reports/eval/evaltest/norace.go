//go:build !race

package evaltest

// Raced reports whether the race detector is on.
const Raced = false
