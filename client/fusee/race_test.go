//go:build race

package fusee

const underRace = true
