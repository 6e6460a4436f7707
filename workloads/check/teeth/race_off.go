//go:build !race

package teeth

// UnderRace reports whether the race detector is on.
const UnderRace = false
