package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
)

// TestFullFileSystem runs in a process that sees a tmpfs of 1 MB of its own, which ends with it.
func TestFullFileSystem(t *testing.T) {
	d := inFolder(t)
	c := child.Command("full", d)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := c.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || strings.Contains(string(out), noMount) {
		t.Skipf("this system does not allow mounting a small tmpfs here: %v %s", err, out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

const noMount = "cannot mount a tmpfs"

// full is what the process does.
func full(folder string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("%s: %w", noMount, err)
	}
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("%s: %w", noMount, err)
	}
	if err := fullAtCreation(folder); err != nil {
		return fmt.Errorf("at creation: %w", err)
	}
	if err := fullLater(folder); err != nil {
		return fmt.Errorf("later: %w", err)
	}
	return nil
}

func fullAtCreation(folder string) error {
	_, noSlots := Create("p", Geometry{Nodes: 1, Memory: 4096, Clients: MaxClients}, nil, nil)
	_, noTables := Create("p", Geometry{Nodes: 1, Memory: 8 << 20, Clients: 4}, nil, commitAll)
	left, err := os.ReadDir(folder)
	if !errors.Is(noSlots, rdma.ErrFull) || !errors.Is(noTables, rdma.ErrFull) || err != nil || len(left) != 0 {
		return fmt.Errorf("slots: %v; tables: %v; left behind: %v %v", noSlots, noTables, left, err)
	}
	return nil
}

// fullLater makes a sparse pool, fills the file system, and touches what was and what was not
// committed.
func fullLater(folder string) error {
	const committed, hole = 0, 1 << 20
	touch := func(m rdma.Memory, r *rdma.Request) error {
		r.Ret[0] = m.FetchAdd(r.Arg[0], 1)
		return nil
	}
	f, err := Create("p", Geometry{Nodes: 1, Memory: 8 << 20, Clients: 4}, touch, func(f *Fabric) error {
		return f.Commit(0, committed, page)
	})
	if err != nil {
		return err
	}
	defer f.Close()
	e, err := f.Open("worker")
	if err != nil {
		return err
	}
	defer e.Close()
	filler := filepath.Join(folder, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("the filler fits: %v", err)
	}
	b := e.Batch()
	p := b.Alloc(64)
	before, write := b.FetchAdd(rdma.At(0, committed), 1), b.Write(rdma.At(0, hole), p)
	read, add := b.Read(rdma.At(0, hole+page), 1024), b.FetchAdd(rdma.At(0, hole+2*page), 1)
	after := b.FetchAdd(rdma.At(0, committed), 1)
	if err := errors.Join(e.Post(b), e.Wait(b, rdma.All, time.Second)); err != nil {
		return err
	}
	for _, op := range []*rdma.Op{write, read, add} {
		if !errors.Is(op.Err, rdma.ErrFull) {
			return fmt.Errorf("%s of a page that nothing is behind: %v", op.Verb, op.Err)
		}
	}
	if before.Err != nil || after.Err != nil || after.Result != before.Result+1 {
		return fmt.Errorf("committed page: %v, %v, %d", before.Err, after.Err, after.Result)
	}
	b.Release()
	if err := f.Commit(0, hole, page); !errors.Is(err, rdma.ErrFull) {
		return fmt.Errorf("commit: %v", err)
	}
	r := rdma.Request{Arg: [6]uint64{hole}}
	if err := e.Call(0, &r, time.Second); !errors.Is(err, rdma.ErrFull) {
		return fmt.Errorf("call: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	if err := f.Commit(0, hole, page); err != nil {
		return err
	}
	if err := e.Call(0, &r, time.Second); err != nil || r.Ret[0] != 0 {
		return fmt.Errorf("call with memory again: %v, word %d", err, r.Ret[0])
	}
	return nil
}
