package ibverbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

func someCard() card {
	return card{
		qpn: 1<<24 - 1, psn: 1<<24 - 2, lid: 0xbeef, gid: [16]byte{0: 0xfe, 15: 9}, ethernet: true, mtu: 5,
		rdAtomic: 16, base: 1<<47 + 8, key: 1<<32 - 3,
	}
}

func TestCard(t *testing.T) {
	for _, c := range []card{someCard(), {qpn: 1, mtu: 1}} {
		if got, err := parseCard(c.bytes()); err != nil || got != c {
			t.Errorf("%+v is read as %+v (%v)", c, got, err)
		}
	}
	for what, spoil := range map[string]func(p []byte) []byte{
		"short":          func(p []byte) []byte { return p[:len(p)-1] },
		"long":           func(p []byte) []byte { return append(p, 0) },
		"empty":          func([]byte) []byte { return nil },
		"version":        func(p []byte) []byte { p[0]++; return p },
		"network":        func(p []byte) []byte { p[1] = 2; return p },
		"no MTU":         func(p []byte) []byte { p[2] = 0; return p },
		"an MTU of 8192": func(p []byte) []byte { p[2] = 6; return p },
		"queue pair 0":   func(p []byte) []byte { clear(p[8:12]); return p },
		"queue pair":     func(p []byte) []byte { p[11] = 1; return p },
		"sequence":       func(p []byte) []byte { p[15] = 1; return p },
	} {
		if c, err := parseCard(spoil(someCard().bytes())); !errors.Is(err, rdma.ErrAccess) || c != (card{}) {
			t.Errorf("%s: a spoilt card is read as %+v (%v)", what, c, err)
		}
	}
}

// FuzzCard reads cards as the other end may say anything: what is read makes sense, and is all that
// was said.
func FuzzCard(f *testing.F) {
	f.Add(someCard().bytes())
	f.Add([]byte{})
	f.Add(make([]byte, cardBytes))
	f.Fuzz(func(t *testing.T, p []byte) {
		c, err := parseCard(p)
		if err != nil {
			if c != (card{}) || !errors.Is(err, rdma.ErrAccess) {
				t.Errorf("%x is refused as %+v, %v", p, c, err)
			}
			return
		}
		if c.qpn == 0 || c.qpn >= 1<<24 || c.psn >= 1<<24 || c.mtu < 1 || c.mtu > 5 {
			t.Errorf("%x is read as %+v", p, c)
		}
		if again, err := parseCard(c.bytes()); err != nil || again != c || len(p) != len(c.bytes()) ||
			!bytes.Equal(c.bytes()[:6], p[:6]) {
			t.Errorf("%x is read as %+v, and that as %+v (%v)", p, c, again, err)
		}
	})
}
