package pmem

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenMainMemory: a file in main memory survives the process, and cannot survive more. One that
// finds no room stays empty.
func TestOpenMainMemory(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "farkv-pmem-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "pm")
	o := small
	o.Power = true
	if _, err := Open(file, o); !errors.Is(err, ErrVolatile) {
		t.Errorf("power: %v", err)
	}
	if r, err := Open(file, small); err != nil {
		t.Error(err)
	} else if s, _ := r.Survives(); s != Process || r.Close() != nil {
		t.Errorf("survives %v", s)
	}
	o = small
	o.Memory = 1 << 43
	other := filepath.Join(dir, "other")
	if _, err := Open(other, o); !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EFBIG) &&
		!errors.Is(err, unix.EINVAL) {
		t.Errorf("8 TiB: %v", err)
	}
	if st, err := os.Stat(other); err == nil && st.Size() > 0 {
		t.Errorf("a file without room has %d bytes", st.Size())
	}
}

// TestOpenPower opens a plain file that is to survive a loss of power.
func TestOpenPower(t *testing.T) {
	o := small
	o.Power = true
	r, err := Open(filepath.Join(t.TempDir(), "pm"), o)
	if errors.Is(err, ErrVolatile) {
		t.Skip(err) // $TMPDIR is in main memory
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before := r.Counters().Syncs
	if err := r.Table().Put("k", []byte("v")); err != nil || r.Counters().Syncs != before+1 {
		t.Errorf("put: %v, %+v", err, r.Counters())
	}
	if s, _ := r.Survives(); s != Power {
		t.Errorf("survives %v", s)
	}
}
