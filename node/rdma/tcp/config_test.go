package tcp_test

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/board"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// TestAwaitConfigUntilClose closes a pool while somebody waits for its configuration, whoever keeps the board.
func TestAwaitConfigUntilClose(t *testing.T) {
	for name, o := range map[string]tcp.Options{"nodes": {}, "memory": {Board: board.Memory(), BoardName: "memory"}} {
		t.Run(name, func(t *testing.T) {
			_, o.Addresses = start(t, 1, 1<<20, nil)
			f := created(t, o, geometry(1))
			waits := make(chan error, 1)
			go func() {
				_, err := f.AwaitConfig(0, time.Hour)
				waits <- err
			}()
			time.Sleep(10 * time.Millisecond)
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			select {
			case err := <-waits:
				if !errors.Is(err, rdma.ErrClosed) {
					t.Errorf("it ends in %v", err)
				}
			case <-time.After(limit):
				t.Fatal("it goes on waiting")
			}
		})
	}
}
