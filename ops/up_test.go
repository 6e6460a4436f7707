package ops

import (
	"bytes"
	"strings"
	"testing"
)

func TestTight(t *testing.T) {
	if s := tight(1<<30, 1<<30, "/pools"); s != "" {
		t.Errorf("a pool that fits: %q", s)
	}
	s := tight(3<<30, 1<<30, "/pools")
	if !strings.Contains(s, "grow to 3 GiB, and /pools has 1 GiB free") {
		t.Errorf("a pool that does not fit: %q", s)
	}
	var out bytes.Buffer
	(&Made{State: &State{Pool: "shm:p", Nodes: []Node{{}}}, Warning: s}).Print(&out)
	if !strings.HasPrefix(out.String(), "made shm:p\nwarning: "+s+"\n\n") {
		t.Errorf("%q", out.String())
	}
}
