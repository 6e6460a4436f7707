//go:build race

package teeth

// UnderRace reports whether the race detector is on. Broken copies are compiled without it, and
// coroutines, of which one runs at a time, are 30 times slower with it: it would show nothing more.
const UnderRace = true
