package shm

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestGone: a process that has a pool open finds out that it was removed.
func TestGone(t *testing.T) {
	inFolder(t)
	f := createPool(t, "pool", small)
	other, err := Open("pool", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*Fabric{f, other} {
		if err := f.Gone(); err != nil {
			t.Error(err)
		}
	}
	if err := Remove("pool", true); err != nil {
		t.Fatal(err)
	}
	next := createPool(t, "pool", small) // of the same name
	for _, f := range []*Fabric{f, other} {
		if err := f.Gone(); !errors.Is(err, rdma.ErrNoPool) {
			t.Errorf("it was removed: %v", err)
		}
	}
	if err := next.Gone(); err != nil {
		t.Error(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := other.Gone(); err != nil {
		t.Errorf("closed: %v", err)
	}
	mem, err := NewMem(small, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(mem.Gone(), mem.Close()); err != nil {
		t.Error(err)
	}
}
