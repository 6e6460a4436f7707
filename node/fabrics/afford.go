package fabrics

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/farkv/farkv/node/hugepages"
)

// ErrOvercommit is wrapped when more memory is asked for than a machine has. Memory is taken as it
// is used, so that a pool could be made all the same, and would fail later.
var ErrOvercommit = errors.New("this machine lacks the memory")

// Afford returns an error wrapping ErrOvercommit when a pool at an address, of so many bytes over
// all of its nodes, is to be in this machine's memory, which has less. A pool on memory nodes is
// theirs, and what is wrong with an address is said elsewhere: then it returns nil, and so it does
// where the system does not tell (beyond Linux).
func Afford(addr string, bytes uint64) error {
	a, err := Parse(addr)
	if err != nil {
		return nil
	}
	if supply := schemeOf(a.Scheme).supply; supply != nil {
		return machine().lacks(bytes, supply())
	}
	return nil
}

// AffordNodes is Afford for so many memory nodes that are to be processes of this machine, each of
// which maps so many bytes: see NodeConfig.Bytes. file backs the memory of one, or is "".
func AffordNodes(fabric, file string, nodes int, each uint64) error {
	return machine().affordNodes(fabric, file, nodes, each)
}

func (m *reader) affordNodes(fabric, file string, nodes int, each uint64) error {
	bytes, huge := uint64(nodes)*each, hugepages.Read(m.root)
	switch {
	case file != "":
		all, held := m.folder(filepath.Dir(file)), heldBy(file)
		for i := range all {
			all[i].bytes += held // a node gives back what its file holds before it takes anything
		}
		return m.lacks(bytes, all)
	case NeedsDevice(fabric) && uint64(nodes)*huge.Pages(each) <= huge.Free: // they are taken
		return nil
	}
	return m.lacks(bytes, m.memory())
}

// supply is memory that there is to be had.
type supply struct {
	bytes uint64
	of    string
}

// reader is a machine as its files tell of it.
type reader struct {
	root   fs.FS
	system string // as GOOS
	// room returns the bytes that are free in a folder, and whether they are main memory; false:
	// the system does not tell.
	room func(folder string) (free uint64, inMemory, ok bool)
}

func machine() *reader { return &reader{os.DirFS("/"), runtime.GOOS, roomOf} }

// lacks compares what is asked for with the scarcest supply.
func (m *reader) lacks(asked uint64, all []supply) error {
	if m.system != "linux" {
		return nil
	}
	for i, s := range all {
		if s.bytes < all[0].bytes {
			all[0] = all[i]
		}
	}
	if len(all) == 0 || asked <= all[0].bytes {
		return nil
	}
	return fmt.Errorf("%w: %s are asked for, and %s are %s", ErrOvercommit, inBytes(asked), inBytes(all[0].bytes),
		all[0].of)
}

// inBytes writes a number of bytes for people.
func inBytes(n uint64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// folder returns what files in a folder can have.
func (m *reader) folder(folder string) (all []supply) {
	free, inMemory, ok := m.room(folder)
	if ok {
		all = append(all, supply{free, "free in " + folder})
	}
	if !ok || inMemory {
		all = append(all, m.memory()...)
	}
	return all
}

// memory returns what a process can have: what the machine has available, and what each of its
// control groups lets it have.
func (m *reader) memory() (all []supply) {
	if kb, ok := m.field("proc/meminfo", "MemAvailable:"); ok {
		all = append(all, supply{kb << 10, "available (MemAvailable in /proc/meminfo)"})
	}
	text, _ := fs.ReadFile(m.root, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) { // NUMBER:CONTROLLERS:PATH
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) != 3:
		case f[0] == "0" && f[1] == "":
			all = append(all, m.groups("sys/fs/cgroup", f[2], "memory.max", "memory.current", "inactive_file")...)
		case strings.Contains(","+f[1]+",", ",memory,"):
			all = append(all, m.groups("sys/fs/cgroup/memory", f[2], "memory.limit_in_bytes", "memory.usage_in_bytes",
				"total_inactive_file")...)
		}
	}
	return all
}

// groups returns what a control group and those around it leave, by the names of their files.
// Within a container the path may be the host's: groups that are not there are left out.
func (m *reader) groups(mount, group, limit, usage, inactive string) (all []supply) {
	for g := path.Clean("/" + group); ; g = path.Dir(g) {
		dir := path.Join(mount, g)
		most, limited := m.number(path.Join(dir, limit))
		used, known := m.number(path.Join(dir, usage))
		if limited && known {
			// the kernel takes it back when it is asked for memory
			cache, _ := m.field(path.Join(dir, "memory.stat"), inactive)
			left := uint64(0)
			if taken := used - min(used, cache); taken < most {
				left = most - taken
			}
			all = append(all, supply{left, fmt.Sprintf("left by the limit of this process's control group (/%s)",
				path.Join(dir, limit))})
		}
		if g == "/" {
			return all
		}
	}
}

// field returns the number behind a name in a file of names and numbers.
func (m *reader) field(file, name string) (n uint64, ok bool) {
	text, _ := fs.ReadFile(m.root, file)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, err := strconv.ParseUint(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// number returns the number that a file holds; false: it holds none, such as "max".
func (m *reader) number(file string) (n uint64, ok bool) {
	text, err := fs.ReadFile(m.root, file)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
