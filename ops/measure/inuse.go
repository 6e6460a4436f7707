package measure

import (
	"strings"

	"github.com/farkv/farkv/client/stores"
)

// bytesInUse sums the bytes of a pool's memory that are in use, all replicas together. Of memory
// that is handed out, or filled, bit by bit that is the part which was: a pool is made for more
// than it holds. All else is in use as soon as there is a pool, such as the journals.
func bytesInUse(uses []stores.Use) (sum uint64) {
	parts := map[string]bool{} // tables of which another line has the part in use
	for _, u := range uses {
		for _, part := range []string{" handed out", " used"} {
			if whole, ok := strings.CutSuffix(u.Name, part); ok {
				parts[whole] = true
			}
		}
	}
	for _, u := range uses {
		switch {
		case parts[u.Name], strings.HasSuffix(u.Name, " free"), u.Name == grownRows:
		default:
			sum += u.Bytes
		}
	}
	return sum
}

// grownRows is a part of RCuckoo's entries.
const grownRows = "rows that tables grew by"
