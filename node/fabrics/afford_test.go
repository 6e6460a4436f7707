package fabrics

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

const gib = 1 << 30

// files makes a machine of the contents of its files.
func files(all map[string]string) *reader {
	root := fstest.MapFS{}
	for name, text := range all {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	rooms := map[string]supply{"/dev/shm": {12 * gib, "memory"}, "/mnt": {100 * gib, ""}}
	return &reader{root, "linux", func(folder string) (free uint64, inMemory, ok bool) {
		r, ok := rooms[folder]
		return r.bytes, r.of != "", ok
	}}
}

// What a machine lacks is told by the scarcest of what it has.
func TestLacks(t *testing.T) {
	const meminfo = "MemTotal:       25165824 kB\nMemAvailable:   20971520 kB\n" // 20 GiB
	plain := files(map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n"})
	v2 := files(map[string]string{
		"proc/meminfo": meminfo, "proc/self/cgroup": "0::/user.slice/job\n",
		"sys/fs/cgroup/user.slice/job/memory.max": "max\n", "sys/fs/cgroup/user.slice/job/memory.current": "1\n",
		"sys/fs/cgroup/user.slice/memory.max":     "8589934592\n",
		"sys/fs/cgroup/user.slice/memory.current": "4294967296\n",
		"sys/fs/cgroup/user.slice/memory.stat":    "anon 1\ninactive_file 1073741824\n", // 8 - 4 + 1 = 5 GiB
	})
	v1 := files(map[string]string{
		"proc/meminfo": meminfo, "proc/self/cgroup": "5:cpu,memory:/docker/0123\n0::/\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
		"sys/fs/cgroup/memory/memory.usage_in_bytes": "3221225472\n",
	})
	silent := files(nil)
	other := files(map[string]string{"proc/meminfo": meminfo})
	other.system = "darwin"
	for name, tt := range map[string]struct {
		m      *reader
		folder string // "": memory
		asked  uint64
		says   string // "": it is there
	}{
		"as much as there is": {plain, "", 20 * gib, ""},
		"a byte more": {plain, "", 20*gib + 1,
			"20.0 GiB are asked for, and 20.0 GiB are available (MemAvailable in /proc/meminfo)"},
		"in shared memory": {plain, "/dev/shm", 13 * gib,
			"13.0 GiB are asked for, and 12.0 GiB are free in /dev/shm"},
		"in a group's memory": {v2, "/dev/shm", 5 * gib, ""},
		"beyond its group": {v2, "/dev/shm", 6 * gib,
			"5.0 GiB are left by the limit of this process's control group (/sys/fs/cgroup/user.slice/memory.max)"},
		"a group that has none": {v1, "", 1 << 20, "1.0 MiB are asked for, and 0.0 MiB are left by the limit"},
		"on a disk":             {plain, "/mnt", 100 * gib, ""},
		"beyond a disk":         {plain, "/mnt", 101 * gib, "100.0 GiB are free in /mnt"},
		"in an unknown folder":  {plain, "/nowhere", 21 * gib, "20.0 GiB are available"},
		"nothing is told":       {silent, "", 1 << 60, ""},
		"another system":        {other, "", 1 << 60, ""},
	} {
		all := tt.m.memory()
		if tt.folder != "" {
			all = tt.m.folder(tt.folder)
		}
		err := tt.m.lacks(tt.asked, all)
		if errors.Is(err, ErrOvercommit) != (tt.says != "") ||
			tt.says != "" && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v; want %q", name, err, tt.says)
		}
	}
}

// This machine has less than any pool may ask for, and more than a small one does.
func TestAfford(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	for _, addr := range []string{"mem:", "shm:p", "p", "shared:p"} {
		if err := Afford(addr, 1<<20); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
		if err := Afford(addr, MaxNodes*MaxMemory); roomKnown(t) && !errors.Is(err, ErrOvercommit) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if err := errors.Join(Afford("tcp:10.0.0.1:7070", MaxMemory), Afford("?", MaxMemory)); err != nil {
		t.Errorf("what is not this machine's: %v", err)
	}
	if err := AffordNodes("tcp", "", MaxNodes, MaxMemory); roomKnown(t) && !errors.Is(err, ErrOvercommit) {
		t.Errorf("nodes: %v", err)
	}
	if err := AffordNodes("tcp", t.TempDir()+"/file", 1, 1<<20); err != nil {
		t.Errorf("a node on a file: %v", err)
	}
}

// Nodes with a device take huge pages where enough of them are free for all that they map.
func TestAffordHugePages(t *testing.T) {
	m := files(map[string]string{"proc/meminfo": "MemAvailable: 1024 kB\n" +
		"HugePages_Total: 1100\nHugePages_Free: 1050\nHugePages_Rsvd: 24\nHugepagesize: 2048 kB\n"}) // 1,026
	gibNode := NodeOf(gib).Bytes()
	for _, tt := range []struct {
		fabric string
		nodes  int
		each   uint64
		fits   bool
	}{
		{"rdma", 1, gibNode, true}, {"rdma", 2, gibNode, true}, {"rdma", 3, gibNode, false},
		{"rdma", 2, gibNode + 2<<20, false}, {"tcp", 1, gibNode, false},
	} {
		if err := m.affordNodes(tt.fabric, "", tt.nodes, tt.each); (err == nil) != tt.fits {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

func roomKnown(t *testing.T) bool {
	t.Helper()
	_, _, ok := roomOf(t.TempDir())
	return ok
}
