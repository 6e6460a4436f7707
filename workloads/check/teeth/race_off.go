//go:build !race

package teeth

// UnderRace tells that the race detector is on.
const UnderRace = false
