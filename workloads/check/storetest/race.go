//go:build race

package storetest

// raceShare: the race detector makes coroutines 30 times slower, and finds nothing where one runs at a time.
const raceShare = 10
