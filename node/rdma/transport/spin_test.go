package transport_test

import (
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/transport"
)

// TestSpinsWhileItPays: looking for input in vain is given up for longer and longer, but not for
// good; where there is input it goes on.
func TestSpinsWhileItPays(t *testing.T) {
	for name, waitsInKernel := range map[string]bool{"node": true, "client": false} {
		b, far := blockingPair(t, time.Minute, time.Minute)
		c, other := b, far
		if !waitsInKernel {
			c, other = far, b
		}
		if got := transport.Spin(c, 14); !slices.Equal(got[:4], []int{1, 3, 7, 15}) || got[13] != 1<<12 {
			t.Errorf("%s: without input %v messages are waited for asleep", name, got)
		}
		if _, err := other.Write([]byte("word")); err != nil {
			t.Fatal(err)
		}
		if got := transport.Spin(c, 3); !slices.Equal(got, []int{0, 0, 0}) {
			t.Errorf("%s: with input %v messages are waited for asleep", name, got)
		}
	}
}
