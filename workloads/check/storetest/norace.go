//go:build !race

package storetest

const raceShare = 1
