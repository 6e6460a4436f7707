//go:build !race

package tcp_test

const underRace = false
