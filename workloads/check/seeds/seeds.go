// Package seeds says which seeds suites in virtual time try.
package seeds

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// Chosen returns the first seed and their number: $FARKV_SEED or 1, and $FARKV_SEEDS or Few of
// those that a test tries otherwise.
func Chosen(t testing.TB, otherwise uint64) (first, count uint64) {
	t.Helper()
	first, count, err := Read(otherwise)
	if err != nil {
		t.Fatal(err)
	}
	return first, count
}

// Read is Chosen for what is no test: the error says what is wrong with the environment.
func Read(otherwise uint64) (first, count uint64, err error) {
	first, count = 1, Few(otherwise)
	for name, to := range map[string]*uint64{"FARKV_SEED": &first, "FARKV_SEEDS": &count} {
		if text := os.Getenv(name); text != "" {
			if *to, err = strconv.ParseUint(text, 10, 63); err != nil {
				return 0, 0, fmt.Errorf("$%s: %w", name, err)
			}
		}
	}
	return first, count, nil
}

// Lowest tries 0 to count-1, as many at a time as there are processors, and returns the lowest of
// which try fails, and its error. Once one fails no further ones begin, and all below it have.
func Lowest(count uint64, try func(i uint64) error) (at uint64, failed error) {
	var next atomic.Uint64
	var mu sync.Mutex // guards the results
	var all sync.WaitGroup
	ended := func(i uint64, err error) bool {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && (failed == nil || i < at) {
			at, failed = i, err
		}
		return failed != nil
	}
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < count && !ended(i, try(i)); i = next.Add(1) - 1 {
				if i%64 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	all.Wait()
	return at, failed
}

// Each tries the chosen seeds, and returns their number. The first error ends the test, which says
// how to try that seed again.
func Each(t *testing.T, otherwise uint64, try func(seed uint64) error) (count uint64) {
	t.Helper()
	first, count := Chosen(t, otherwise)
	for seed := first; seed < first+count; seed++ {
		if err := try(seed); err != nil {
			t.Fatalf("seed %d: %v\nreplay: FARKV_SEED=%d FARKV_SEEDS=1 go test -run '^%s$'", seed, err, seed,
				strings.ReplaceAll(t.Name(), "/", "$/^"))
		}
	}
	return count
}

// Few is an eighth of n, so that go test ./... takes minutes, and as few under the race detector,
// which makes coroutines 30 times slower, and finds nothing where one runs at a time. Where
// $FARKV_LONG is set it is n: it is 1 or 0 in the step long of .ci/run, and 0 in the copies that
// package teeth breaks.
func Few(n uint64) uint64 {
	if isFew() {
		return max(1, n/8)
	}
	return n
}

func isFew() bool { return teeth.UnderRace || os.Getenv("FARKV_LONG") == "" }

// Step is in which steps a test goes through a list: few where Few is a part, or all.
func Step(all, few uint64) uint64 {
	if isFew() {
		return few
	}
	return all
}
