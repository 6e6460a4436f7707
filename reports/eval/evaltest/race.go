//go:build race

package evaltest

// Raced reports whether the race detector is on: tests take ten times as long, and one simulation has one goroutine: what can race is only
// how they are run.
const Raced = true
