package rdmatest

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership/history"
	"github.com/farkv/farkv/node/rdma"
)

// reigning makes a worker the pool's master for long, or for a moment.
func reigning(t testing.TB, f rdma.Fabric, ep rdma.Endpoint, lease time.Duration) rdma.Role {
	for until := ep.Now() + patience; ep.Now() < until; ep.Sleep(min(lease, time.Millisecond) / 4) {
		r, ok, err := f.TryMaster(ep.Client(), lease)
		if ok {
			return r
		}
		if err != nil {
			t.Error(err)
			break
		}
	}
	t.Errorf("client %d does not become master", ep.Client())
	return rdma.Role{}
}

// swapped replaces the configuration, and expects that to succeed or not.
func swapped(t testing.TB, f rdma.Fabric, r rdma.Role, version uint64, data []byte, want bool, wantErr error) {
	t.Helper()
	before, err := f.Config()
	if err != nil {
		t.Error(err)
	}
	ok, err := f.SwapConfig(r, version, data)
	after, again := f.Config()
	if ok != want || !errors.Is(err, wantErr) || again != nil {
		t.Errorf("version %d becomes %d bytes as master of epoch %d: %v, %v; want %v, %v", version, len(data), r.Epoch,
			ok, err, want, wantErr)
	}
	wants := before
	if want {
		wants = rdma.Config{Version: version + 1, Data: data}
	}
	if after.Version != wants.Version || !bytes.Equal(after.Data, wants.Data) {
		t.Errorf("the configuration is version %d, %d bytes; want version %d, %d bytes", after.Version, len(after.Data),
			wants.Version, len(wants.Data))
	}
}

// filled is a configuration of n bytes at least that begins with text, and of which no part is
// another's.
func filled(text string, n int) []byte {
	text += ";"
	return bytes.Repeat([]byte(text), n/len(text)+1)
}

// testConfig replaces the configuration by versions, of all sizes.
func testConfig(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		if c, err := f.Config(); c.Version != 0 || len(c.Data) > 0 || err != nil {
			t.Errorf("a new pool has configuration %+v, %v", c, err)
		}
		swapped(t, f, rdma.Role{}, 0, []byte("none"), false, rdma.ErrStale)
		r := reigning(t, f, ep, 10*time.Second)
		swapped(t, f, rdma.Role{}, 0, []byte("none"), false, rdma.ErrStale)
		swapped(t, f, r, 1, []byte("early"), false, nil)
		for i, n := range []int{1, 0, 7, 8, 9, 4096, rdma.MaxConfig, 3} {
			data := filled(fmt.Sprint("version ", i), n)[:n]
			swapped(t, f, r, uint64(i), data, true, nil)
			swapped(t, f, r, uint64(i), []byte("late"), false, nil)
			for j := range data {
				data[j] = 'X'
			}
			if c, err := f.Config(); bytes.ContainsRune(c.Data, 'X') || err != nil {
				t.Errorf("version %d shares its memory with its writer (%v)", c.Version, err)
			} else if n > 0 {
				c.Data[0] = 'Y'
			}
			if c, _ := f.Config(); n > 0 && c.Data[0] == 'Y' {
				t.Errorf("version %d shares its memory with its readers", c.Version)
			}
		}
		swapped(t, f, r, 8, make([]byte, rdma.MaxConfig+1), false, rdma.ErrMessageSize)
		f.Resign(r)
		swapped(t, f, reigning(t, f, ep, 10*time.Second), 8, []byte("next tenure"), true, nil)
	})
}

// testConfigs lets workers with one role replace the configuration, and read it, as fast as they
// can.
func testConfigs(t testing.TB, h Harness) {
	const rounds = 12
	f, log := h.New(t, 1, poolBytes, nil), history.New()
	var role atomic.Pointer[rdma.Role]
	var done atomic.Int32
	var fs []func(rdma.Endpoint)
	for w := range workers {
		fs = append(fs, func(ep rdma.Endpoint) {
			defer done.Add(1)
			if w == 0 {
				r := reigning(t, f, ep, 30*time.Second)
				role.Store(&r)
				defer func() { // the others' tenure is its own
					for done.Load() < workers-1 {
						ep.Sleep(10 * time.Microsecond)
					}
				}()
			}
			for role.Load() == nil {
				ep.Sleep(10 * time.Microsecond)
			}
			for i := range rounds {
				value := useConfig(t, f, ep, log, w)
				if i%3 == 2 {
					continue
				}
				to, n := fmt.Sprintf("%d.%d", w, i), 1+ep.Rand().IntN(300)
				if i%4 == 0 {
					n = rdma.MaxConfig - 16
				}
				began := log.Begin()
				ok, err := f.SwapConfig(*role.Load(), value.Version, filled(to, n))
				log.Swapped(w, "config", began, textOf(value), to, ok, err == nil)
				if err != nil && !errors.Is(err, rdma.ErrUnreachable) {
					t.Errorf("worker %d: %v", w, err)
				}
			}
		})
	}
	h.Parallel(t, f, fs...)
	if err := log.Check(); err != nil {
		t.Error(err)
	}
	if c, err := f.Config(); err != nil || c.Version < rounds/2 {
		t.Errorf("the configuration is version %d at last, %v", c.Version, err)
	}
}

// textOf is what a configuration was filled with.
func textOf(c rdma.Config) string {
	text, _, _ := bytes.Cut(c.Data, []byte(";"))
	return string(text)
}

// useConfig reads the configuration, of which all must be there.
func useConfig(t testing.TB, f rdma.Fabric, ep rdma.Endpoint, log *history.Log, user int) rdma.Config {
	began := log.Begin()
	c, err := f.Config()
	if err != nil {
		t.Errorf("worker %d: %v", user, err)
		return c
	}
	if c.Version > 0 && !bytes.Equal(c.Data, filled(textOf(c), len(c.Data)-1)) {
		t.Errorf("worker %d: version %d is %d bytes that are not of one configuration", user, c.Version, len(c.Data))
	}
	if err := log.Loaded(user, "config", began, textOf(c), c.Version); err != nil {
		t.Error(err)
	}
	return c
}

// testDeposed has masters replace the configuration after their tenure is over: none does once
// another is master, whether or not that one has ever touched it.
func testDeposed(t testing.TB, h Harness) {
	f, lease := h.New(t, 1, poolBytes, nil), h.lease()
	one(t, h, f, func(ep rdma.Endpoint) {
		other, err := f.Open("other")
		if err != nil {
			t.Error(err)
			return
		}
		first := reigning(t, f, other, lease)
		if ok, err := f.SwapConfig(first, 0, []byte("first")); !ok || err != nil {
			t.Errorf("the first configuration: %v, %v", ok, err)
		}
		second := reigning(t, f, ep, 10*time.Second) // once the first tenure has run out
		swapped(t, f, first, 1, []byte("deposed"), false, rdma.ErrStale)
		swapped(t, f, second, 1, []byte("second"), true, nil)
		swapped(t, f, first, 2, []byte("deposed"), false, rdma.ErrStale)
		f.Resign(second)
		third := reigning(t, f, ep, 10*time.Second)
		swapped(t, f, second, 2, []byte("resigned"), false, rdma.ErrStale)
		swapped(t, f, third, 2, []byte("third"), true, nil)
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
}

// testAwaitConfig has workers follow a configuration that changes.
func testAwaitConfig(t testing.TB, h Harness) {
	const versions = 5
	f := h.New(t, 1, poolBytes, nil)
	var followed atomic.Int32
	follow := func(ep rdma.Endpoint) {
		defer followed.Add(1)
		for last := uint64(0); last < versions; {
			c, err := f.AwaitConfig(last, patience)
			if err != nil || c.Version <= last || textOf(c) != fmt.Sprint(c.Version) {
				t.Errorf("behind version %d comes version %d, %q, %v", last, c.Version, textOf(c), err)
				return
			}
			last = c.Version
		}
		if c, err := f.AwaitConfig(0, patience); c.Version != versions || err != nil {
			t.Errorf("another than version 0 is version %d, %v", c.Version, err)
		}
		if c, err := f.AwaitConfig(versions, time.Microsecond); !errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("behind the last version comes version %d, %v", c.Version, err)
		}
	}
	h.Parallel(t, f, follow, follow, func(ep rdma.Endpoint) {
		r := reigning(t, f, ep, 30*time.Second)
		for v := range uint64(versions) {
			if ok, err := f.SwapConfig(r, v, filled(fmt.Sprint(v+1), 100)); !ok || err != nil {
				t.Errorf("version %d: %v, %v", v+1, ok, err)
			}
			ep.Sleep(time.Millisecond)
		}
		for until := ep.Now() + patience; followed.Load() < 2 && ep.Now() < until; {
			ep.Sleep(time.Millisecond)
		}
	})
}
