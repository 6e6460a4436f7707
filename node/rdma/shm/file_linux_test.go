package shm

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
)

// inFolder makes the test's pools appear in a folder of its own.
func inFolder(t testing.TB) string {
	t.Helper()
	d := t.TempDir()
	t.Setenv("FARKV_SHM_DIR", d)
	return d
}

// create makes a pool with committed memory, and closes it at the end.
func createPool(t testing.TB, name string, g Geometry) *Fabric {
	t.Helper()
	f, err := Create(name, g, nil, commitAll)
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

func commitAll(f *Fabric) error {
	for n := range f.Nodes() {
		if err := f.Commit(n, 0, f.Size()); err != nil {
			return err
		}
	}
	return nil
}

func openPool(t testing.TB, name string) *Fabric {
	t.Helper()
	f, err := Open(name, nil)
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

func attachTo(t testing.TB, f *Fabric, name string) *Endpoint {
	t.Helper()
	e, err := f.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e.(*Endpoint)
}

func TestTwoFabricsShareAPool(t *testing.T) {
	inFolder(t)
	f, g := createPool(t, "p", small), openPool(t, "p")
	a, b := attachTo(t, f, "a"), attachTo(t, g, "b")
	if a.Client() == b.Client() {
		t.Fatalf("both are client %d", a.Client())
	}
	for _, f := range []*Fabric{f, g} {
		if all := f.Clients(); len(all) != 2 || !all[0].Alive || !all[1].Alive {
			t.Fatalf("clients: %+v", all)
		}
		for _, c := range []rdma.ClientID{a.Client(), b.Client()} {
			if err := forget(f, c); !errors.Is(err, rdma.ErrHeld) {
				t.Fatalf("forget client %d: %v", c, err)
			}
		}
	}
	at := rdma.At(1, 4096)
	if _, err := do(t, a, func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(at, 7) }); err != nil {
		t.Fatal(err)
	}
	if got, err := do(t, b, func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(at, 1) }); got != 7 || err != nil {
		t.Fatalf("the other fabric reads %d, %v", got, err)
	}
}

func TestPoolIsHiddenUntilFormatted(t *testing.T) {
	d := inFolder(t)
	stop := errors.New("stop")
	_, err := Create("p", small, nil, func(f *Fabric) error {
		if _, err := Open("p", nil); !errors.Is(err, ErrNoPool) {
			t.Errorf("open while it is formatted: %v", err)
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Fatalf("create: %v", err)
	}
	left, err := os.ReadDir(d)
	if err != nil || len(left) != 0 {
		t.Fatalf("left behind: %v, %v", left, err)
	}
}

func TestCreateTwice(t *testing.T) {
	inFolder(t)
	createPool(t, "p", small)
	if _, err := Create("p", small, nil, nil); !errors.Is(err, ErrExists) {
		t.Fatalf("second create: %v", err)
	}
	// Another creator may be faster between the first look and the link.
	_, err := Create("q", small, nil, func(*Fabric) error {
		createPool(t, "q", small)
		return nil
	})
	if !errors.Is(err, ErrExists) {
		t.Fatalf("slower create: %v", err)
	}
}

func TestPoolsArePrivate(t *testing.T) {
	inFolder(t)
	createPool(t, "p", small)
	st, err := os.Stat(path("p"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", st.Mode(), err)
	}
}

func TestOpenRefusesWhatIsNoPool(t *testing.T) {
	d := inFolder(t)
	whole := make([]byte, small.size())
	small.encode(whole)
	with := func(word int, v uint64) []byte {
		p := slices.Clone(whole)
		binary.NativeEndian.PutUint64(p[8*word:], v)
		return p
	}
	for _, c := range []struct {
		name    string
		content []byte
		want    error
		says    string
	}{
		{"empty", nil, ErrFormat, "too short"},
		{"short", whole[:20], ErrFormat, "too short"},
		{"foreign", with(0, 0x464c457f), ErrFormat, "0x464c457f"},
		{"newer", with(1, version+1), ErrFormat, "newest known"},
		{"older", with(1, 0), ErrFormat, "no format 0"},
		{"truncated", whole[:len(whole)-page], ErrFormat, "truncated"},
		{"no-nodes", with(2, 0), ErrFormat, "damaged header"},
		{"many-nodes", with(2, 1<<40), ErrFormat, "damaged header"},
		{"odd-memory", with(3, 12345), ErrFormat, "damaged header"},
		{"huge-memory", with(3, 1<<63), ErrFormat, "damaged header"},
		{"many-clients", with(4, 1<<20), ErrFormat, "damaged header"},
	} {
		file := filepath.Join(d, prefix+c.name)
		if err := os.WriteFile(file, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(c.name, nil)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := Remove(c.name, false); !errors.Is(err, c.want) {
			t.Errorf("%s: remove: %v", c.name, err)
		}
		if now, err := os.ReadFile(file); err != nil || string(now) != string(c.content) {
			t.Errorf("%s: the file was changed", c.name)
		}
		if err := Remove(c.name, true); err != nil {
			t.Errorf("%s: remove by force: %v", c.name, err)
		}
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	d := inFolder(t)
	if _, err := Open("missing", nil); !errors.Is(err, ErrNoPool) {
		t.Errorf("missing: %v", err)
	}
	if err := os.Mkdir(filepath.Join(d, prefix+"folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(d, prefix+"symlink")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(d, prefix+"fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"folder", "symlink", "fifo"} {
		if _, err := Open(name, nil); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", ".hidden", "-flag", "a/b", "a b", strings.Repeat("x", 201)} {
		if _, err := Open(name, nil); !errors.Is(err, ErrName) {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

func TestListAndRemove(t *testing.T) {
	d := inFolder(t)
	f := createPool(t, "b", small)
	createPool(t, "a", small)
	if err := os.WriteFile(filepath.Join(d, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := List(); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Fatalf("list: %v, %v", names, err)
	}
	e := attachTo(t, f, "user")
	if err := Remove("b", false); !errors.Is(err, ErrInUse) {
		t.Fatalf("remove with a live client: %v", err)
	}
	if err := Remove("b", true); err != nil {
		t.Fatal(err)
	}
	if _, err := do(t, e, func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, 0), 1) }); err != nil {
		t.Fatalf("a client of a removed pool: %v", err)
	}
	if err := Remove("a", false); err != nil {
		t.Fatal(err)
	}
	if err := Remove("a", true); !errors.Is(err, ErrNoPool) {
		t.Fatalf("remove what is gone: %v", err)
	}
}

func TestMissingRights(t *testing.T) {
	d := inFolder(t)
	createPool(t, "p", small)
	var said string
	if os.Getuid() != 0 {
		if err := os.Chmod(path("p"), 0); err != nil {
			t.Fatal(err)
		}
		_, err := Open("p", nil)
		said = fmt.Sprintln(err)
	} else {
		said = openWithoutRoot(t, d)
	}
	if !strings.Contains(said, fs.ErrPermission.Error()) || strings.Count(said, "\n") != 1 {
		t.Fatalf("open without the right to: %q", said)
	}
}

// openWithoutRoot opens the pool p in a process without root's rights, which has to reach the
// folder and its own binary.
func openWithoutRoot(t *testing.T, folder string) string {
	t.Helper()
	for p := folder; p != filepath.Clean(os.TempDir()) && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(folder, "test")
	if err := os.WriteFile(exe, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	c := child.Command("open", "p")
	c.Path = exe
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.Output()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		t.Fatalf("child: %v: %s", err, out)
	}
	return string(out)
}

func TestMasterRole(t *testing.T) {
	inFolder(t)
	f, g := createPool(t, "p", small), openPool(t, "p")
	const lease = 30 * time.Millisecond
	first, ok, err := f.TryMaster(1, MaxLease)
	if !ok || err != nil || first.Epoch != 1 {
		t.Fatalf("first: %+v %v %v", first, ok, err)
	}
	if r, ok, _ := g.TryMaster(2, lease); ok || r.Owner != 1 || r.Until != first.Until {
		t.Fatalf("second took a lease that runs: %+v", r)
	}
	first, ok, _ = f.Renew(first, lease)
	if !ok || first.Epoch != 1 {
		t.Fatalf("renewal: %+v %v", first, ok)
	}
	for now() < first.Until {
		time.Sleep(time.Millisecond)
	}
	second, ok, _ := g.TryMaster(2, MaxLease)
	if !ok || second.Epoch != 2 || second.Owner != 2 {
		t.Fatalf("after expiry: %+v %v", second, ok)
	}
	if r, ok, _ := f.Renew(first, lease); ok || r.Owner != 2 {
		t.Fatalf("renewal of a lost role: %+v", r)
	}
	f.Resign(first)
	if _, ok, _ := f.TryMaster(3, lease); ok {
		t.Fatal("the resignation of a lost role ended the new one")
	}
	g.Resign(second)
	if r, ok, _ := f.TryMaster(3, lease); !ok || r.Epoch != 3 {
		t.Fatalf("after resignation: %+v %v", r, ok)
	}
	f.head.role = roleWord(rdma.Role{Owner: 1, Until: now() + 2*MaxLease})
	if _, ok, _ := f.TryMaster(2, lease); !ok {
		t.Fatal("a lease from before the machine was started is in the way")
	}
	for _, d := range []time.Duration{0, -1, MaxLease + 1} {
		if _, _, err := f.TryMaster(1, d); err == nil {
			t.Fatalf("a lease of %v was granted", d)
		}
	}
}

// TestSlowMaster has a candidate win the role and then sleep until another one has it: the epoch
// that it draws on waking must not count, since it is the greater one.
func TestSlowMaster(t *testing.T) {
	inFolder(t)
	f := createPool(t, "p", small)
	slow := rdma.Role{Owner: 1, Until: now().Truncate(time.Microsecond)}
	f.head.role = roleWord(slow)
	if r, ok, err := f.TryMaster(2, MaxLease); !ok || err != nil || r.Epoch != 1 {
		t.Fatalf("%+v, %v, %v", r, ok, err)
	}
	if r, ok := f.draw(slow); ok || r.Owner != 2 {
		t.Fatalf("the slow one became %+v", r)
	}
}

// TestMasterTenures has candidates take and lose the role as fast as they can: a tenure with a
// greater epoch began later, and no two have the same.
func TestMasterTenures(t *testing.T) {
	inFolder(t)
	createPool(t, "p", small)
	type tenure struct {
		epoch   uint64
		granted time.Duration
	}
	const candidates, each = 3, 200
	var had [candidates][]tenure
	var all sync.WaitGroup
	for i := range candidates {
		f := openPool(t, "p")
		all.Go(func() {
			for until := now() + patience; len(had[i]) < each && now() < until; {
				if r, ok, err := f.TryMaster(rdma.ClientID(i+1), 50*time.Microsecond); err != nil {
					t.Error(err)
					return
				} else if ok {
					had[i] = append(had[i], tenure{r.Epoch, r.Until})
				}
				runtime.Gosched()
			}
		})
	}
	all.Wait()
	sorted := slices.Concat(had[:]...)
	if len(sorted) != candidates*each {
		t.Fatalf("%d tenures", len(sorted))
	}
	slices.SortFunc(sorted, func(a, b tenure) int { return cmp.Compare(a.epoch, b.epoch) })
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; a.epoch == b.epoch || a.granted >= b.granted {
			t.Fatalf("tenure %+v came before %+v", a, b)
		}
	}
}

func FuzzParse(f *testing.F) {
	whole := make([]byte, headSize)
	small.encode(whole)
	f.Add(whole, int64(small.size()))
	f.Add(whole[:7], int64(7))
	f.Fuzz(func(t *testing.T, p []byte, length int64) {
		g, err := parse(p, length)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("%v does not wrap ErrFormat", err)
			}
			return
		}
		if g.check() != nil || g.size() > uint64(length) || g.first() < page+uint64(g.Clients)*slotSize ||
			g.stride() < g.Memory {
			t.Fatalf("accepted %+v in %d bytes", g, length)
		}
		again := make([]byte, headSize)
		g.encode(again)
		if string(again) != string(p[:headSize]) {
			t.Fatalf("%x became %x", p, again)
		}
	})
}
