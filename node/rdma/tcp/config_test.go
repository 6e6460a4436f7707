package tcp_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// TestAwaitConfigUntilClose closes a pool during a wait for its configuration, on each kind of
// registry.
func TestAwaitConfigUntilClose(t *testing.T) {
	for name, o := range map[string]control.Options{"nodes": {},
		"memory": {Registry: membership.Memory(), RegistryName: "memory"}} {
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

// BenchmarkConfig replaces, and reads, a configuration that three nodes of this process keep.
func BenchmarkConfig(b *testing.B) {
	p := New(b, 3, 1<<20, nil)
	ep, err := p.Open("master")
	if err != nil {
		b.Fatal(err)
	}
	defer ep.Close()
	r, ok, err := p.TryMaster(ep.Client(), membership.MaxLease)
	if !ok || err != nil {
		b.Fatal(ok, err)
	}
	for _, n := range []int{2 << 10, rdma.MaxConfig} {
		b.Run(fmt.Sprintf("swap/%d", n), func(b *testing.B) {
			for b.Loop() {
				c, err := p.Config()
				if err != nil {
					b.Fatal(err)
				}
				if ok, err := p.SwapConfig(r, c.Version, make([]byte, n)); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
		b.Run(fmt.Sprintf("read/%d", n), func(b *testing.B) {
			for b.Loop() {
				if c, err := p.Config(); err != nil || len(c.Data) != n {
					b.Fatal(len(c.Data), err)
				}
			}
		})
	}
}
