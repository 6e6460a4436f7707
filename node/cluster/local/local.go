// Package local keeps pools whose memory nodes are processes of this machine: a run folder for each, with a record of the
// processes that were started, their pid files and their logs.
//
//	$XDG_RUNTIME_DIR/farkv/NAME/record.json     what Record says; without the variable, /tmp/farkv-UID/NAME
//	                            node-0.pid      the process, while it serves
//	                            node-0.log      its standard output and error
//
// A process is told from a later one of the same number by the time at which it started and the boot in which it did, so
// that nothing is ever killed that was not started here.
package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// What callers branch on.
var (
	ErrNoPool = errors.New("no such pool on this machine")
	ErrExists = errors.New("pool exists")
	ErrFolder = errors.New("run folder cannot be used")
	ErrRecord = errors.New("pool's record cannot be read")
	ErrName   = errors.New("bad pool name")
)

// Record is what is known of a pool. It is the content of record.json.
type Record struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	// Address opens the pool; "" until it was made, and when making it was cut off.
	Address string    `json:"address,omitempty"`
	Nodes   []Process `json:"nodes"`
}

// Process is one memory node that was started here.
type Process struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"`             // in the kernel's ticks since the boot; 0: it ended at once
	Boot    string `json:"boot"`              // the kernel's name for that
	Address string `json:"address,omitempty"` // at which it serves; "": it never did
}

// version counts the changes to Record that an older reader would stumble over.
const version = 1

// Pool is one run folder. It is not safe for concurrent use.
type Pool struct {
	Record
	folder string
}

// Root returns the folder of all run folders; it need not be there.
func Root() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "farkv")
	}
	return filepath.Join(os.TempDir(), "farkv-"+strconv.Itoa(os.Getuid()))
}

// private makes sure that the root is a folder which nobody else can write to or look into: in /tmp another user may have
// made one of that name.
func private(root string) error {
	err := os.Mkdir(root, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", ErrFolder, err)
	}
	info, err := os.Lstat(root)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrFolder, err)
	case !info.IsDir() || owner(info) != os.Getuid():
		return fmt.Errorf("%w: %s is no folder of yours", ErrFolder, root)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%w: others may use %s: its mode is %v", ErrFolder, root, info.Mode().Perm())
	}
	return nil
}

const longest = 200

// CheckName tells whether name may name a pool; the rule is that of pools in shared memory. The error wraps ErrName.
func CheckName(name string) error {
	ok := len(name) > 0 && len(name) <= longest && name[0] != '.' && name[0] != '-'
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-')
	}
	if !ok {
		return fmt.Errorf("%w %q: want 1 to %d letters, digits, '.', '_' or '-', beginning with none of '.' and '-'", ErrName,
			name, longest)
	}
	return nil
}

// Create makes an empty run folder. Of two that do so at once one gets an error wrapping ErrExists; others wrap ErrName or
// ErrFolder.
func Create(name string) (*Pool, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	root := Root()
	if err := private(root); err != nil {
		return nil, err
	}
	p := &Pool{Record: Record{Version: version, Name: name, Nodes: []Process{}}, folder: filepath.Join(root, name)}
	switch err := os.Mkdir(p.folder, 0o700); {
	case errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("%s: %w", p.folder, ErrExists)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	if err := p.save(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.folder))
	}
	return p, nil
}

// Open reads the record of a pool. Errors wrap ErrName, ErrNoPool, ErrRecord or fs.ErrPermission.
func Open(name string) (*Pool, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	p := &Pool{folder: filepath.Join(Root(), name)}
	text, err := os.ReadFile(filepath.Join(p.folder, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, p.absent(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if err := json.Unmarshal(text, &p.Record); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrRecord, p.folder, err)
	}
	if p.Version != version || p.Name != name {
		return nil, fmt.Errorf("%w: %s is of pool %q, version %d: want version %d", ErrRecord, p.folder, p.Name, p.Version, version)
	}
	return p, nil
}

// absent tells a pool that is not there from a folder without its record.
func (p *Pool) absent(name string) error {
	if _, err := os.Lstat(p.folder); err == nil {
		return fmt.Errorf("%w: %s has no %s", ErrRecord, p.folder, recordFile)
	}
	return fmt.Errorf("%s: %w", name, ErrNoPool)
}

// List returns the names of the pools there are, sorted, those with a damaged record too.
func List() ([]string, error) {
	entries, err := os.ReadDir(Root())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && CheckName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Resolve returns the address of the pool of that name; false: there is none here, or it was never finished, or name is
// none.
func Resolve(name string) (addr string, ok bool) {
	p, err := Open(name)
	if err != nil || p.Address == "" {
		return "", false
	}
	return p.Address, true
}

const recordFile = "record.json"

// save replaces the record in one step: a crash leaves the old one or the new one.
func (p *Pool) save() error {
	text, err := json.MarshalIndent(p.Record, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(p.folder, recordFile)
	if err := os.WriteFile(name+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the record of %s: %w", p.Name, err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		return fmt.Errorf("write the record of %s: %w", p.Name, err)
	}
	return nil
}

// Made notes that the pool was made, and by which address it is opened.
func (p *Pool) Made(address string) error {
	p.Address = address
	return p.save()
}

// Folder returns the pool's run folder, PIDFile and Log the files of one node in it.
func (p *Pool) Folder() string { return p.folder }

// PIDFile returns the path of a node's pid file.
func (p *Pool) PIDFile(node int) string { return p.file(node, "pid") }

// Log returns the path of a node's log.
func (p *Pool) Log(node int) string { return p.file(node, "log") }

func (p *Pool) file(node int, kind string) string {
	return filepath.Join(p.folder, fmt.Sprintf("node-%d.%s", node, kind))
}
