//go:build !race

package fusee

const underRace = false
