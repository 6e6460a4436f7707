// Package local keeps pools with memory nodes that are processes of this machine. Each pool has a
// run folder with a record of the processes that were started, their pid files, and their logs.
//
//	$XDG_RUNTIME_DIR/farkv/NAME/record.json     the content of Record
//	                            token           the nodes' token, if they were given one
//	                            node-0.pid      the process, while it serves
//	                            node-0.log      its standard output and error
//
// A process is distinguished from a later one with the same number by the time at which it started
// and by the boot. So no process is ever killed that was not started here.
package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/farkv/farkv/node/rdma"
)

// Errors that callers branch on.
var (
	ErrNoPool = errors.New("no such pool on this machine")
	ErrExists = errors.New("pool exists")
	ErrFolder = errors.New("folder cannot be used")
	ErrRecord = errors.New("pool's record cannot be read")
	ErrName   = errors.New("bad pool name")
	// ErrVersion is wrapped, beside ErrRecord, if another version of farkv wrote the record in a
	// format that this version does not read.
	ErrVersion = errors.New("it was made by another version of farkv")
)

// Record is what is known about a pool. It is the content of record.json.
type Record struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	// Address opens the pool; "": the pool was not made yet, or making it was interrupted.
	Address string    `json:"address,omitempty"`
	Nodes   []Process `json:"nodes"`
	// Data is the folder with the nodes' memory, if they have one: see Data.
	Data string `json:"data,omitempty"`
}

// Process is a memory node that was started here.
type Process struct {
	PID int `json:"pid"`
	// When it started, in the kernel's ticks since the boot; 0: it had ended by then.
	Start uint64 `json:"start"`
	// The kernel's ID of the boot.
	Boot string `json:"boot"`
	// Where it serves; "": it has not served yet.
	Address string `json:"address,omitempty"`
}

// version counts the changes of Record that an older version of farkv would misread.
const version = 1

// Pool is one run folder. It is not safe for concurrent use, but several processes may use one
// folder.
type Pool struct {
	Record
	folder string
}

// CheckName returns an error that wraps ErrName if name may not name a pool. The rule is that of
// pools in shared memory.
func CheckName(name string) error {
	if !rdma.IsPoolName(name) {
		return fmt.Errorf("%w %q: want %s", ErrName, name, rdma.PoolNames)
	}
	return nil
}

// Create makes an empty run folder. If two do so at once, one gets an error that wraps ErrExists.
// Other errors wrap ErrName or ErrFolder.
//
// The folder gets its name after its record was written. So each folder with a pool's name can be
// opened, and removed. A crash before leaves a folder without a pool's name.
func Create(name string) (*Pool, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := makeRoot(); err != nil {
		return nil, err
	}
	making, err := os.MkdirTemp(Root(), ".making-*")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	p := &Pool{Record: Record{Version: version, Name: name, Nodes: []Process{}}, folder: making}
	if err := p.save(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(making))
	}
	p.folder = filepath.Join(Root(), name)
	if err := os.Rename(making, p.folder); err != nil {
		if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTDIR) {
			err = fmt.Errorf("%s: %w", p.folder, ErrExists)
		} else {
			err = fmt.Errorf("%w: %w", ErrFolder, err)
		}
		return nil, errors.Join(err, os.RemoveAll(making))
	}
	return p, nil
}

// Open reads the record of a pool. Errors wrap ErrName, ErrNoPool, ErrRecord, or ErrFolder: another
// user may have made the folder, or may change it.
func Open(name string) (*Pool, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	folder, err := openPool(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNoPool)
	}
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	p := &Pool{folder: folder.Name()}
	text, err := readOwn(folder, recordFile, othersWrite)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s has no %s", ErrRecord, p.folder, recordFile)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &p.Record); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrRecord, p.folder, err)
	}
	if p.Version != version || p.Name != name {
		return nil, fmt.Errorf("%w: %s is of pool %q, version %d: want version %d", ErrRecord, p.folder, p.Name,
			p.Version, version)
	}
	return p, nil
}

// openPool opens a pool's run folder. Errors wrap fs.ErrNotExist or ErrFolder.
func openPool(name string) (*os.File, error) {
	root, err := openRoot()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return openFolder(root, filepath.Join(root.Name(), name), othersWrite)
}

// Resolve returns the address of the pool with a name; "": there is no such pool here, it was not
// completed, or the name may not name a pool. Errors wrap ErrFolder or ErrRecord: what is there
// cannot be trusted or read.
func Resolve(name string) (addr string, err error) {
	p, err := Open(name)
	switch {
	case errors.Is(err, ErrName), errors.Is(err, ErrNoPool):
		return "", nil
	case err != nil:
		return "", err
	}
	return p.Address, nil
}

const recordFile = "record.json"

// save replaces the record atomically: a crash leaves the old one or the new one.
func (p *Pool) save() error {
	text, err := json.MarshalIndent(p.Record, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(p.folder, recordFile)
	err = os.WriteFile(name+".new", append(text, '\n'), 0o600)
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		return fmt.Errorf("write the record of %s: %w", p.Name, err)
	}
	return nil
}

// Made notes that the pool was made, and the address that opens it.
func (p *Pool) Made(address string) error {
	p.Address = address
	return p.save()
}

// Folder returns the pool's run folder.
func (p *Pool) Folder() string { return p.folder }

// PIDFile returns the path of a node's pid file.
func (p *Pool) PIDFile(node int) string { return p.file(node, "pid") }

// Log returns the path of a node's log.
func (p *Pool) Log(node int) string { return p.file(node, "log") }

// file returns the path of a node's file of one kind.
func (p *Pool) file(node int, kind string) string {
	return filepath.Join(p.folder, fmt.Sprintf("node-%d.%s", node, kind))
}
