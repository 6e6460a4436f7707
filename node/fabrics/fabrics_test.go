package fabrics

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	for addr, want := range map[string]string{
		"mem:": "mem:", "shm:pool": "shm:pool", "pool": "shm:pool", "a.b-c_1": "shm:a.b-c_1",
		"tcp:h:1,[::1]:2": "tcp:h:1,[::1]:2", "consul:h:8500/p": "consul:h:8500/p",
	} {
		if a, err := Parse(addr); err != nil || a.String() != want {
			t.Errorf("%q: %v, %v", addr, a, err)
		}
	}
	for addr, says := range map[string]string{
		"": "want 1 to", "shm:": "want 1 to", "shm:a/b": "want 1 to", "mem:x": "takes no name",
		"sim:1": "'farkv sim run STORE' makes its own", "rdma:": "want HOST:PORT, as in rdma:10", "ftp:x": "want NAME,",
		"tcp:": "want HOST:PORT", "tcp:host": "want HOST:PORT", "tcp::7": "want HOST:PORT", "tcp:h:0": "want HOST:PORT",
		"tcp:h:1,h:2,h:1": "named twice", "tcp:h:1,": "want HOST:PORT", "consul:h": "want HOST:PORT/POOL",
		"consul:h:1/a b": "bad pool name",
	} {
		_, err := Parse(addr)
		if !errors.Is(err, ErrAddress) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", addr, err)
		}
		if errors.Is(err, rdma.ErrNotSupported) != strings.HasPrefix(addr, "sim:") {
			t.Errorf("%q: %v", addr, err)
		}
		_, create := Create(addr, small, nil)
		_, open := Open(addr)
		for _, err := range []error{create, open, Remove(addr, true)} {
			if !errors.Is(err, ErrAddress) {
				t.Errorf("%q: %v", addr, err)
			}
		}
	}
}

// TestSchemes: an address of every form is one of a fabric, or says that this program lacks it; and
// every row that is an address's has what a caller asks for.
func TestSchemes(t *testing.T) {
	behind := strings.NewReplacer("NAME", "pool", "HOST:PORT,...", "h:1", "HOST:PORT/POOL", "h:1/pool")
	names := map[string]bool{}
	for _, s := range schemes() {
		if names[s.name] || s.parse == nil {
			t.Errorf("%s: there are two rows of that name, or it parses nothing", s.name)
		}
		names[s.name] = true
		addr := behind.Replace(s.form)
		a, err := Parse(addr)
		if errors.Is(err, ErrNotBuilt) || s.form == "" {
			continue
		}
		if row := schemeOf(a.Scheme); err != nil || a.String() != addr || row.create == nil || row.open == nil ||
			row.remove == nil {
			t.Errorf("%s: %+v, %v; its row is %+v", addr, a, err, row)
		}
		if a.Remote() != (slices.Contains(NodeFabrics(), s.name) || s.name == "consul") ||
			Private(addr) != (s.name == "mem") {
			t.Errorf("%s: remote %v, private %v", addr, a.Remote(), Private(addr))
		}
	}
	for want, got := range map[string][]string{
		"mem shm tcp rdma": Fabrics(), "shm tcp rdma": NamedFabrics(), "tcp rdma": NodeFabrics(),
	} {
		if strings.Join(got, " ") != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

var small = Geometry{Nodes: 1, Memory: 1 << 20, Clients: 4}

// write formats a pool: it commits a page and writes a word of it.
func write(f rdma.Fabric) error {
	if err := node.Commit(f, 0, 4096, 8); err != nil {
		return err
	}
	e, err := f.Open("format")
	if err != nil {
		return err
	}
	b := e.Batch()
	b.FetchAdd(rdma.At(0, 4096), 42)
	err = rdma.Do(e, b, time.Second)
	b.Release()
	return errors.Join(err, e.Close())
}

// check reads the word, and makes a call, which fails for its own reasons.
func check(t *testing.T, f rdma.Fabric) {
	t.Helper()
	e, err := f.Open("check")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	b := e.Batch()
	defer b.Release()
	op := b.FetchAdd(rdma.At(0, 4096), 0)
	if err := rdma.Do(e, b, time.Second); err != nil || op.Result != 42 {
		t.Fatalf("the word is %d, %v", op.Result, err)
	}
	if err := e.Call(0, &rdma.Request{Proc: node.ProcAlloc}, time.Second); !errors.Is(err, rdma.ErrAccess) {
		t.Fatalf("an allocation in no table: %v", err)
	}
}

func TestMem(t *testing.T) {
	f, err := Create("mem:", small, write)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	check(t, f)
	if _, err := Open("mem:"); !errors.Is(err, ErrNoPool) {
		t.Errorf("open: %v", err)
	}
	if err := Remove("mem:", true); !errors.Is(err, ErrNoPool) {
		t.Errorf("remove: %v", err)
	}
	stop := errors.New("stop")
	if f, err := Create("mem:", small, func(rdma.Fabric) error { return stop }); !errors.Is(err, stop) || f != nil {
		t.Errorf("failing format: %v, %v", f, err)
	}
	if f, err := Create("mem:", Geometry{}, nil); err == nil || f != nil {
		t.Errorf("no geometry: %v, %v", f, err)
	}
}

func TestShm(t *testing.T) {
	d := t.TempDir()
	t.Setenv("FARKV_SHM_DIR", d)
	f, err := Create("pool", small, write)
	if runtime.GOOS != "linux" {
		if !errors.Is(err, rdma.ErrNotSupported) {
			t.Errorf("create on %s: %v", runtime.GOOS, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Create("shm:pool", small, write); !errors.Is(err, ErrExists) {
		t.Errorf("create again: %v", err)
	}
	if f, err = Open("shm:pool"); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	check(t, f)
	if all, err := List(); err != nil || !slices.Equal(all, []string{"shm:pool"}) {
		t.Errorf("list: %v, %v", all, err)
	}
	e, err := f.Open("user")
	if err != nil {
		t.Fatal(err)
	}
	if err := Remove("pool", false); !errors.Is(err, ErrInUse) {
		t.Errorf("remove with a client: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := Remove("pool", false); err != nil {
		t.Error(err)
	}
	if f, err := Open("pool"); !errors.Is(err, ErrNoPool) || f != nil {
		t.Errorf("open what is gone: %v, %v", f, err)
	}
	if err := os.WriteFile(filepath.Join(d, "farkv-text"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("text"); !errors.Is(err, ErrFormat) {
		t.Errorf("open a text: %v", err)
	}
	if _, err := Create("text", small, write); !errors.Is(err, ErrFormat) || errors.Is(err, ErrExists) {
		t.Errorf("create over a text: %v", err)
	}
	if err := os.Mkdir(filepath.Join(d, "farkv-folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, create := Create("folder", small, write)
	for _, err := range []error{create, Remove("folder", true)} {
		if !errors.Is(err, ErrIrregular) || !errors.Is(err, ErrFormat) {
			t.Errorf("a folder: %v", err)
		}
	}
	if in, free, err := Room(); in != d || free == 0 || err != nil {
		t.Errorf("room: %s, %d, %v", in, free, err)
	}
}

// A folder of pools that is not there is told apart from a pool that is not.
func TestNoFolder(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("pools that processes share need Linux")
	}
	t.Setenv("FARKV_SHM_DIR", filepath.Join(t.TempDir(), "nosuch"))
	_, create := Create("pool", small, write)
	_, open := Open("pool")
	_, list := List()
	_, _, room := Room()
	for _, err := range []error{create, open, list, room, Remove("pool", true)} {
		if !errors.Is(err, ErrFolder) || errors.Is(err, ErrNoPool) || !strings.Contains(err.Error(), "nosuch") {
			t.Errorf("%v", err)
		}
	}
}
