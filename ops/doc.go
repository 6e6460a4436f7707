// Package ops are the operations on pools: one a file, each a function that answers with a Result.
// Command farkv wires flags to them. What breaks pools, serves them and watches them is in packages
// of its own, which import this one: chaos, daemon, metrics, monitor.
package ops

import "io"

// Result is what an operation answers. It is also meant for encoding/json.
type Result interface {
	// Print writes it for people.
	Print(w io.Writer)
}
