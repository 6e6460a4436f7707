package shm

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
)

// TestConfigOfAWriterThatDied has a master die before it replaces the word: the old configuration
// is whole, and the next one, too.
func TestConfigOfAWriterThatDied(t *testing.T) {
	f, _ := newMem(t)
	ep, err := f.Open("master")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	r, ok, err := f.TryMaster(ep.Client(), time.Minute)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	for version := range uint64(20) {
		old := bytes.Repeat([]byte{byte(version)}, 100)
		if ok, err := f.SwapConfig(r, version, old); !ok || err != nil {
			t.Fatal(ok, err)
		}
		p, n := f.head.half(f.g, version+2)
		memcopy.Store(p, bytes.Repeat([]byte{99}, 10*int(version)))
		*n = 10 * version
		if c, err := f.Config(); err != nil || c.Version != version+1 || !bytes.Equal(c.Data, old) {
			t.Errorf("version %d, %v, behind a writer that died: %+v", c.Version, err, c)
		}
	}
}

// TestConfigLock has a writer keep another one waiting.
func TestConfigLock(t *testing.T) {
	f, _ := newMem(t)
	one, err := f.Open("one")
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	r, _, err := f.TryMaster(one.Client(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.lockConfig(); err != nil { // as another writer
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		ok, err := f.SwapConfig(r, 0, []byte("second"))
		if !ok {
			err = errors.Join(err, errors.New("it was not replaced"))
		}
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("two write at a time: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	if err := f.lives.drop(0); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// TestAwaitConfigUntilClose closes a pool during a wait for its configuration.
func TestAwaitConfigUntilClose(t *testing.T) {
	f, err := NewMem(small, nil)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := f.AwaitConfig(0, time.Hour)
		waits <- err
	}()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waits; !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("it ends in %v", err)
	}
}

// TestConfigWhileItChanges reads a configuration that is replaced as fast as it can be: each is
// whole.
func TestConfigWhileItChanges(t *testing.T) {
	f, _ := newMem(t)
	ep, err := f.Open("master")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	r, ok, err := f.TryMaster(ep.Client(), time.Minute)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	stop, writes := make(chan struct{}), make(chan error, 1)
	go func() {
		for version := uint64(0); ; version++ {
			select {
			case <-stop:
				writes <- nil
				return
			default:
			}
			if ok, err := f.SwapConfig(r, version, configured(version+1)); !ok || err != nil {
				writes <- errors.Join(err, errors.New("it was not replaced"))
				return
			}
		}
	}()
	if _, err := f.AwaitConfig(0, time.Minute); err != nil {
		t.Error(err)
	}
	for range 5000 {
		if c, err := f.Config(); err != nil || !bytes.Equal(c.Data, configured(c.Version)) {
			t.Errorf("version %d, of %d bytes, is not whole: %v", c.Version, len(c.Data), err)
			break
		}
	}
	close(stop)
	if err := <-writes; err != nil {
		t.Error(err)
	}
}

// configured is a configuration of that version.
func configured(version uint64) []byte {
	return bytes.Repeat([]byte{byte(version)}, 1+int(version*9973%rdma.MaxConfig))
}
