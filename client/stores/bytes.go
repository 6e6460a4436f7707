package stores

import (
	"strconv"
	"strings"
)

var units = []struct {
	suffix string
	bytes  uint64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"b", 1},
}

// ParseBytes reads a size such as 4096, 512MiB, 2GB or 1g (1 GiB).
func ParseBytes(s string) (uint64, bool) {
	number, unit := strings.ToLower(s), uint64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, unit = n, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
	if err != nil || n > (1<<62)/unit {
		return 0, false
	}
	return n * unit, true
}

// BytesText writes a number of bytes as ParseBytes reads it, in the largest unit that divides it.
func BytesText[N int | uint64](n N) string {
	unit := ""
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, larger
	}
	return strconv.FormatUint(uint64(n), 10) + unit
}
