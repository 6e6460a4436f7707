package consul

import (
	"errors"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rdma/shm"
)

func TestParse(t *testing.T) {
	for _, ok := range [][3]string{
		{"127.0.0.1:8500/p", "127.0.0.1:8500", "p"},
		{"consul.example:8501/my-pool_1.x", "consul.example:8501", "my-pool_1.x"},
		{"[::1]:8500/p", "[::1]:8500", "p"},
	} {
		if agent, pool, err := Parse(ok[0]); agent != ok[1] || pool != ok[2] || err != nil {
			t.Errorf("%s: %q, %q, %v", ok[0], agent, pool, err)
		}
	}
	for _, bad := range []string{
		"", "/", "p", "127.0.0.1:8500", "127.0.0.1:8500/", "127.0.0.1/p", ":8500/p", "h:0/p", "h:65536/p", "h:http/p",
		"h:8500/a/b", "h:8500/..", "h:8500/-x", "h:8500/a b", "http://h:8500/p", "a@h:8500/p", "h x:1/p",
	} {
		if agent, pool, err := Parse(bad); !errors.Is(err, ErrAddress) {
			t.Errorf("%q is %q, %q, %v", bad, agent, pool, err)
		}
	}
	if _, err := Dial("localhost"); !errors.Is(err, ErrAddress) {
		t.Error(err)
	}
}

// FuzzName checks that a pool may have the names here that it may have in shared memory.
func FuzzName(f *testing.F) {
	for _, name := range []string{"", "a", "A9._-", ".a", "-a", "_a", "a/b", "a b", "ä", strings.Repeat("x", 200),
		strings.Repeat("x", 201)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		here, there := checkName(name), shm.CheckName(name)
		if (here == nil) != (there == nil) {
			t.Errorf("%q: %v, and in shared memory %v", name, here, there)
		}
	})
}
