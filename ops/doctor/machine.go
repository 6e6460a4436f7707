package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops/format"
)

// Machine is what an Examination looks at: this one, or a test's.
type Machine struct {
	Root    fs.FS  // the file system, from /
	System  string // as GOOS
	Go      string // the version of Go that made this program, and for what
	UID     int    // of the process, effective
	Cores   int    // that the process may use
	Procs   int    // GOMAXPROCS
	Memlock func() (bytes uint64, err error)
	// Room tells the folder of pools in shared memory, and what is free there.
	Room func() (folder string, free uint64, err error)
	// Verbs asks libibverbs for the devices: see fabrics.ProbeRDMA.
	Verbs func() ([]fabrics.RDMADevice, error)
	// Program runs a program on the PATH and returns what it says. An error wrapping
	// exec.ErrNotFound: there is none.
	Program func(ctx context.Context, name string, args ...string) (string, error)
	Getenv  func(string) string
}

// ThisMachine is the one that the program runs on.
func ThisMachine() Machine {
	return Machine{
		Root: os.DirFS("/"), System: runtime.GOOS, Go: strings.TrimPrefix(runtime.Version(), "go") + ", " +
			runtime.GOOS + "/" + runtime.GOARCH,
		UID: os.Geteuid(), Cores: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0),
		Memlock: memlockLimit, Room: fabrics.Room, Program: program, Getenv: os.Getenv,
		Verbs: fabrics.ProbeRDMA,
	}
}

// programTime bounds a program that is asked something: ipmctl takes seconds where there are many
// DIMMs.
const programTime = 20 * time.Second

func program(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second // for what it started and left behind
	out, err := cmd.CombinedOutput()
	return printable(string(out[:min(len(out), mostText)])), err
}

// mostText bounds what is read of a file, or taken of a program's words: the list of a kernel's
// modules is the longest.
const mostText = 4 << 20

// text returns a file's content without the space around it. What is no regular file is not opened:
// it might block.
func (m *Machine) text(name string) (string, error) {
	st, err := fs.Stat(m.Root, name)
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file: %w", name, fs.ErrInvalid)
	}
	f, err := m.Root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, mostText))
	return printable(string(p)), err
}

// printable keeps odd bytes from the operator's terminal.
func printable(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(s, "?")))
}

// line is the first line of a file; "" where it cannot be read.
func (m *Machine) line(name string) string {
	s, _ := m.text(name)
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// number is what a file begins with; -1 where that is none.
func (m *Machine) number(name string) int64 {
	first, _, _ := strings.Cut(m.line(name), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// list returns what is in a folder, sorted, at most mostEntries. One that is not there is empty.
func (m *Machine) list(folder string) ([]string, error) {
	all, err := fs.ReadDir(m.Root, folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range all[:min(len(all), mostEntries)] {
		names = append(names, e.Name())
	}
	return names, err
}

const mostEntries = 4096

// there returns what is in a folder, as far as it can be read.
func (m *Machine) there(folder string) []string {
	names, _ := m.list(folder)
	return names
}

// link returns the last part of what a symbolic link means; "" where there is none.
func (m *Machine) link(name string) string {
	to, err := fs.ReadLink(m.Root, name)
	if err != nil {
		return ""
	}
	return path.Base(to)
}

// stat returns a file's mode.
func (m *Machine) stat(name string) (fs.FileMode, error) {
	st, err := fs.Stat(m.Root, name)
	if err != nil {
		return 0, err
	}
	return st.Mode(), nil
}

// has reports whether there is such a file or folder.
func (m *Machine) has(name string) bool {
	_, err := m.stat(name)
	return err == nil
}

// mounts returns where those file systems are mounted that ok picks by type and options.
func (m *Machine) mounts(ok func(kind string, options []string) bool) (found []string) {
	text, _ := m.text("proc/self/mounts")
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) >= 4 && ok(f[2], strings.Split(f[3], ",")) {
			found = append(found, f[1])
		}
	}
	return found
}

// machine tells of processors and clocks.
func (d *Examination) machine(_ context.Context, t *Topic) {
	found := fmt.Sprintf("%d, GOMAXPROCS %d", d.Cores, d.Procs)
	if nodes := d.numa(); nodes > 0 {
		found += ", " + format.Plural(nodes, "NUMA node", "NUMA nodes")
	}
	if d.Procs < d.Cores {
		t.warn("cores", found, "Go uses fewer threads than there are cores: unset GOMAXPROCS, or raise the "+
			"container's limit of CPUs")
	} else {
		t.ok("cores", found)
	}
	t.ok("Go", d.Go)
	if d.System != "linux" {
		return
	}
	if release := d.line("proc/sys/kernel/osrelease"); release != "" {
		t.ok("kernel", release)
	}
	switch clock := d.line("sys/devices/system/clocksource/clocksource0/current_clocksource"); clock {
	case "":
		t.warn("clock source", "cannot be read", "")
	case "hpet", "acpi_pm", "jiffies", "refined-jiffies":
		t.warn("clock source", clock+": a look at the clock enters the kernel, and counts in latencies",
			"echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource, where the processor has a "+
				"steady one")
	default:
		t.ok("clock source", clock)
	}
}

// numa counts the NUMA nodes.
func (d *Examination) numa() (n int) {
	for _, name := range d.there("sys/devices/system/node") {
		if number, ok := strings.CutPrefix(name, "node"); ok && strings.Trim(number, "0123456789") == "" {
			n++
		}
	}
	return n
}
