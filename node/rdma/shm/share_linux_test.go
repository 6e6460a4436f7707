package shm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
)

// A pool that another user may change is refused, and left alone, unless it is opened as shared.
func TestForeignPools(t *testing.T) {
	chown := func(path string) error {
		if os.Getuid() != 0 {
			t.Skip("only root can give a file to another user")
		}
		return os.Chown(path, 12345, 12345)
	}
	chmod := func(mode os.FileMode) func(string) error {
		return func(path string) error { return os.Chmod(path, mode) }
	}
	for name, tt := range map[string]struct {
		harm func(path string) error
		says string // "": it is the user's own
	}{
		"another user's":  {chown, "belongs to user 12345"},
		"open to all":     {chmod(0o666), "-rw-rw-rw-"},
		"open to a group": {chmod(0o660), "-rw-rw----"},
		"to be read":      {chmod(0o644), ""},
	} {
		t.Run(name, func(t *testing.T) {
			inFolder(t)
			createPool(t, "p", small)
			if err := tt.harm(path("p")); err != nil {
				t.Fatal(err)
			}
			f, err := Open("p", nil)
			if err == nil {
				f.Close()
			}
			if says := fmt.Sprint(err); errors.Is(err, ErrForeign) != (tt.says != "") ||
				!strings.Contains(says, tt.says) {
				t.Errorf("open: %v", err)
			}
			if tt.says != "" {
				if err := Remove("p", true); !errors.Is(err, ErrForeign) {
					t.Errorf("remove: %v", err)
				}
			}
			if _, err := Create("p", small, nil, nil); !errors.Is(err, ErrExists) {
				t.Errorf("create: %v", err)
			}
			f, err = Open("p", nil, Shared)
			if err != nil {
				t.Fatalf("as shared: %v", err)
			}
			if err := errors.Join(f.Close(), Remove("p", false, Shared)); err != nil {
				t.Error(err)
			}
		})
	}
}

// sharedPool makes a pool that other users may change.
func sharedPool(t *testing.T) *Fabric {
	t.Helper()
	inFolder(t)
	old := syscall.Umask(0o077)
	f, err := Create("p", small, nil, commitAll, Shared)
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func TestCreateShared(t *testing.T) {
	sharedPool(t)
	if st, err := os.Stat(path("p")); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// The process that a slot names is signaled only when it is the one that holds the slot; no process
// dies of what is written there.
func TestWordsOfOthers(t *testing.T) {
	f := sharedPool(t)
	e := attachTo(t, f, "victim")
	bystander := exec.Command("sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		bystander.Process.Kill()
		bystander.Wait()
	}()
	atomic.StoreUint64(&e.slot.pid, uint64(bystander.Process.Pid))
	if err := f.CrashClient(f.Clients()[0], ""); !errors.Is(err, ErrForeign) {
		t.Errorf("crash: %v", err)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the bystander was killed: %v", err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", bystander.Process.Pid))
	if err != nil || strings.Contains(string(stat), ") Z ") {
		t.Errorf("the bystander was killed: %s, %v", stat, err)
	}
	atomic.StoreUint64(&e.slot.pid, uint64(os.Getpid()))
	if err := f.CrashClient(f.Clients()[0], "one"); !errors.Is(err, rdma.ErrNotSupported) {
		t.Errorf("order to crash: %v", err)
	}
	atomic.StoreUint64(&e.slot.pid, uint64(stepOrder("one"))<<orderShift|uint64(os.Getpid()))
	e.Post(e.Batch().As("one")) // or the test ends here
	copy(e.slot.name[:], "a\x1b[2Jb\xff")
	if name := f.Clients()[0].Name; !strings.HasPrefix(name, "a?[2Jb?") {
		t.Errorf("%q", name)
	}
	f.head.members[1] = rdma.Member{Replaces: 1000}.Word()
	if v := f.View(); len(v.Members) != small.Nodes || v.Members[1].Replaces != 0 {
		t.Errorf("%+v", v)
	}
}

// A process goes on when the owner of its pool's file truncates it, and reports that.
func TestTruncated(t *testing.T) {
	for _, size := range []int64{0, page, int64(small.first()), int64(small.first() + small.stride())} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inFolder(t)
			p := createPool(t, "p", small)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			c := child.Start(t, "truncated", "p")
			if says := c.Line(t); says != "ready" {
				t.Fatalf("it says %q", says)
			}
			if err := os.Truncate(path("p"), size); err != nil {
				t.Fatal(err)
			}
			c.Release()
			if says, err := c.Next(); says != "survived" || err != nil {
				t.Errorf("the process said %q: %v", says, err)
			}
			if err := c.Wait(); err != nil {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

// truncated touches all of a pool that has lost the end of its file.
func truncated(f *Fabric, e *Endpoint, wait func()) error {
	fmt.Println("ready")
	wait()
	last := small.Nodes - 1
	b := e.Batch()
	read := b.Read(rdma.At(last, 0), 64)
	err := errors.Join(e.Post(b), e.Wait(b, rdma.All, time.Second))
	if err != nil || !errors.Is(read.Err, ErrTruncated) || !errors.Is(read.Err, rdma.ErrNoPool) {
		return fmt.Errorf("read: %w, %w", err, read.Err)
	}
	b.Release()
	f.handler = func(m rdma.Memory, _ *rdma.Request) error {
		m.FetchAdd(0, 1)
		return nil
	}
	r := rdma.Request{}
	if err := e.Call(last, &r, time.Second); !errors.Is(err, ErrTruncated) {
		return fmt.Errorf("call: %w", err)
	}
	f.View()
	f.Clients()
	f.NodeDown(0)
	f.Master()
	e.Post(e.Batch().As("one"))
	role, _, _ := f.TryMaster(e.Client(), time.Second)
	f.Renew(role, time.Second)
	f.Resign(role)
	f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true})
	f.SetMember(1, 0, rdma.Member{}, rdma.Member{Gone: true})
	f.Fence(1)
	f.Expel(1, 0)
	f.KillNode(1)
	f.Revoke(e.Client())
	f.RevokeLife(rdma.Client{ID: e.Client(), Life: e.Life()})
	f.Forget(rdma.Client{ID: e.Client(), Life: e.Life()})
	f.CrashClient(rdma.Client{ID: e.Client() + 1, Life: 1}, "one")
	e.Join()
	f.Open("another")
	err = f.tasks.Go(func(string) (rdma.Endpoint, error) { return e, nil }, "keeper", func(rdma.Endpoint) {
		var err error
		for !errors.Is(err, rdma.ErrClosed) { // as a keeper does
			if _, _, err = f.TryMaster(e.Client(), time.Second); err == nil {
				_, err = e.Join()
			}
			e.Sleep(time.Millisecond)
		}
	})
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	fmt.Println("survived")
	return nil
}
