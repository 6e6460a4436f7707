package doctor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma/ibverbs"
	"github.com/farkv/farkv/workloads/runner"
)

var rewrite = flag.Bool("update", false, "write what the doctor says into its fixtures")

// patient is a machine of the files of a fixture. A file that says "-> PATH" is a symbolic link.
func patient(a *txtar.Archive) Examination {
	root := fstest.MapFS{}
	for _, f := range a.Files {
		file := &fstest.MapFile{Data: f.Data, Mode: 0o644}
		if to, ok := strings.CutPrefix(string(f.Data), "-> "); ok {
			file = &fstest.MapFile{Data: []byte(strings.TrimSpace(to)), Mode: fs.ModeSymlink | 0o777}
		}
		if f.Name == "dev/infiniband/uverbs0" {
			file.Mode = 0o600
		}
		root[path.Clean(f.Name)] = file
	}
	return Examination{Memory: 2 << 30, Machine: Machine{
		Root: root, System: "linux", Go: "1.99", UID: 1000, Cores: 36, Procs: 36,
		Memlock: func() (uint64, error) { return 8 << 20, nil },
		Room:    func() (string, uint64, error) { return "/dev/shm", 16 << 30, nil },
		Verbs:   func() ([]fabrics.RDMADevice, error) { return nil, fabrics.ErrNoDevice },
		Program: func(context.Context, string, ...string) (string, error) { return "", exec.ErrNotFound },
		Getenv:  func(name string) string { return map[string]string{"CONSUL_HTTP_ADDR": "nowhere"}[name] },
	}}
}

// TestDoctor compares what is said of each machine with what its fixture wants.
func TestDoctor(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", "")
	fixtures, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(fixtures) < 5 {
		t.Fatalf("%d fixtures, %v", len(fixtures), err)
	}
	for _, name := range fixtures {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			d := patient(a)
			adapt(t.Name(), &d)
			h, err := d.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			h.Print(&out)
			if *rewrite {
				a.Files[0].Data = []byte(out.String())
				if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := string(a.Files[0].Data); a.Files[0].Name != "want" || out.String() != want {
				t.Errorf("says\n%s\nwant\n%s", out.String(), want)
			}
		})
	}
}

// adapt sets what is no file on a fixture's machine.
func adapt(name string, d *Examination) {
	switch filepath.Base(name) {
	case "roce":
		d.Memlock = func() (uint64, error) { return math.MaxUint64, nil }
		d.Program = func(context.Context, string, ...string) (string, error) { return "---DimmID=0x0001---", nil }
		d.Verbs = func() ([]fabrics.RDMADevice, error) {
			return []fabrics.RDMADevice{{
				Device: "mlx5_0", QueuePair: 262144, Requests: 32768, RdAtomic: 16, Regions: 16777216, Atomics: "HCA",
				MaskedAtomics: true,
				DeviceMemory:  128 << 10, SharedReceive: 8388608, MultiPacket: "yes", SharedPackets: "yes",
				Ports: []ibverbs.Port{{Device: "mlx5_0", Port: 1, State: "ACTIVE", MTU: 1024},
					{Device: "mlx5_0", Port: 2, State: "DOWN"}},
			}}, nil
		}
	case "infiniband":
		d.Procs = 4
		d.Room = func() (string, uint64, error) { return "/dev/shm", 1 << 30, nil }
		d.Program = func(context.Context, string, ...string) (string, error) {
			return "Initialization failed. No PMem modules in the system.", errors.New("exit status 1")
		}
	case "rxe":
		d.UID = 0
		d.Memory = 4 << 20
		d.Verbs = func() ([]fabrics.RDMADevice, error) {
			return []fabrics.RDMADevice{{Device: "rxe0", QueuePair: 1048560, Requests: 1048576, RdAtomic: 128,
					Atomics: "HCA", MultiPacket: "no",
					SharedPackets: "no"}},
				errors.New("open device siw0: permission denied")
		}
	case "laptop":
		d.Verbs = func() ([]fabrics.RDMADevice, error) { return nil, fmt.Errorf("probe: %w", fabrics.ErrNotBuilt) }
		d.Room = func() (string, uint64, error) { return "/dev/shm", 1 << 20, nil }
	case "odd":
		d.Memlock = func() (uint64, error) { return 0, errors.New("no such limit") }
		d.Verbs = func() ([]fabrics.RDMADevice, error) {
			return []fabrics.RDMADevice{{Device: "x1", Atomics: "none"}}, nil
		}
		d.Room = func() (string, uint64, error) { return "", 0, errors.New("no folder") }
		d.Program = func(context.Context, string, ...string) (string, error) {
			return "Segmentation fault", errors.New("exit status 139")
		}
	}
}

// forbidden is a file system of which nothing may be read.
type forbidden struct{}

func (forbidden) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

// Without permission to read anything the doctor reports that, and does not fail. Neither does it
// fail on a system other than Linux.
func TestDoctorSeesNothing(t *testing.T) {
	d := patient(&txtar.Archive{})
	d.Root = forbidden{}
	h, err := d.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f := h.Topics[0].Findings[0]; f.Condition != Missing || !strings.Contains(f.Found, "permission denied") {
		t.Errorf("%+v", f)
	}
	d.System, d.Require = "darwin", []string{"machine"}
	h, err = d.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range h.Topics {
		if elsewhere := topic.Name == "consul" || topic.Name == "machine"; !elsewhere &&
			topic.Findings[0].Found != "this is darwin" {
			t.Errorf("%+v", topic)
		}
	}
}

func TestDoctorRequires(t *testing.T) {
	d := patient(&txtar.Archive{})
	d.Require = []string{"shm", "machine"}
	if h, err := d.Run(t.Context()); err != nil || h == nil {
		t.Errorf("%v, %v", h, err)
	}
	d.Require = []string{"shm", "consul", "pmem"}
	if h, err := d.Run(t.Context()); h == nil || err == nil ||
		err.Error() != "not ready: pmem (persistent memory); consul (agent)" {
		t.Errorf("%v", err)
	}
	d.Require = []string{"gpu"}
	if _, err := d.Run(t.Context()); !runner.Misused(err) || !strings.Contains(err.Error(), "want rdma, memlock") {
		t.Errorf("%v", err)
	}
}

// TestPathMTU: RoCE leaves 96 B of a network device's packet to others.
func TestPathMTU(t *testing.T) {
	for netdev, want := range map[int64]int64{0: 0, 351: 0, 352: 256, 1500: 1024, 4191: 2048, 4192: 4096, 9000: 4096} {
		if got := pathMTU(netdev); got != want {
			t.Errorf("a device of %d carries %d, want %d", netdev, got, want)
		}
	}
}

// A port with many addresses shows some, in the order of their numbers.
func TestDoctorManyGIDs(t *testing.T) {
	var text strings.Builder
	at := "sys/class/infiniband/m/ports/1"
	fmt.Fprintf(&text, "-- %s/../../node_type --\n1: CA\n-- %s/state --\n4: ACTIVE\n-- %s/link_layer --\nInfiniBand\n",
		at, at, at)
	for i := range 12 {
		fmt.Fprintf(&text, "-- %s/gids/%d --\nfe80:0000:0000:0000:0000:0000:0000:%04x\n", at, i, i+1)
	}
	d := patient(txtar.Parse([]byte(text.String())))
	h, err := d.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	h.Print(&out)
	last := -1
	for i := range shownGIDs {
		at := strings.Index(out.String(), fmt.Sprintf("GID %d ", i))
		if at <= last {
			t.Errorf("GID %d is not in its place", i)
		}
		last = at
	}
	if !strings.Contains(out.String(), "4 more") || strings.Contains(out.String(), "GID 8") {
		t.Error(out.String())
	}
}
