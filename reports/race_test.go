//go:build race

package reports

// raced: tests take ten times as long, and one simulation has one goroutine: what can race is only
// how they are run.
const raced = true
