package stores

import "testing"

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]uint64{"0": 0, "4096": 4096, "512MiB": 512 << 20, "2GB": 2e9, "1g": 1 << 30,
		"3 KiB": 3072, "7b": 7, "1TiB": 1 << 40} {
		if got, ok := ParseBytes(s); !ok || got != want {
			t.Errorf("%s is %d bytes (%v), want %d", s, got, ok, want)
		}
	}
	for _, s := range []string{"", "MiB", "-1", "1.5g", "99999999999TB", "1 1"} {
		if got, ok := ParseBytes(s); ok {
			t.Errorf("%q is %d bytes", s, got)
		}
	}
}
