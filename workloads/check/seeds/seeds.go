// Package seeds says which seeds suites in virtual time try.
package seeds

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// Chosen returns the first seed and their number: $FARKV_SEED or 1, and $FARKV_SEEDS or Few of those that a test tries otherwise.
func Chosen(t testing.TB, otherwise uint64) (first, count uint64) {
	t.Helper()
	first, count = 1, Few(otherwise)
	for name, to := range map[string]*uint64{"FARKV_SEED": &first, "FARKV_SEEDS": &count} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 63)
			if err != nil {
				t.Fatalf("$%s: %v", name, err)
			}
			*to = n
		}
	}
	return first, count
}

// Each tries the chosen seeds, and returns their number. The first error ends the test, which says how to try that seed again.
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

// Few is n, or a tenth of it under the race detector, which makes coroutines 30 times slower, and finds nothing where one runs
// at a time.
func Few(n uint64) uint64 {
	if teeth.UnderRace {
		return max(1, n/10)
	}
	return n
}
