package format

import (
	"testing"
)

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 7: "7", 999: "999", 1000: "1,000", 65536: "65,536", 1234567: "1,234,567", -1: "-1", -123: "-123",
		-1234: "-1,234",
	} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) is %s, want %s", n, got, want)
		}
	}
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1,023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1 MiB", 1 << 20: "1 MiB",
		186 << 20:  "186 MiB",
		1023 << 20: "1,023 MiB", 1<<30 - 1: "1 GiB", 3 << 40: "3 TiB", 1 << 60: "1,024 PiB",
	} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) is %s, want %s", n, got, want)
		}
	}
	for us, want := range map[float64]string{
		0: "0 ns", 0.4464: "446 ns", 0.9994: "999 ns", 0.9996: "1.0 µs", 12.34: "12.3 µs", 999.94: "999.9 µs",
		999.96: "1.0 ms", 2900: "2.9 ms", 1.5e6: "1.5 s",
	} {
		if got := Latency(us); got != want {
			t.Errorf("Latency(%v) is %s, want %s", us, got, want)
		}
	}
}
