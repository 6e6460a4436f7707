package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrData is wrapped when a folder has the memory of nodes and no pool.
var ErrData = errors.New("folder has no record of a pool")

// Data is a folder in which a pool's nodes keep their memory. It outlives the run folder: nodes
// that are started with it again have what they had.
//
//	pool.json       the content of Data, once the pool was made; before, the files mean nothing
//	node-0.pmem     the memory of a node
type Data struct {
	// Version of the format.
	Version int `json:"version"`
	// Addresses are those at which the nodes listen, by node; none: no pool was made here yet.
	Addresses []string `json:"addresses"`
	// Bytes of memory of each node.
	Memory uint64 `json:"memory"`
	// The memory survives a loss of power.
	Power bool `json:"power,omitempty"`
	// The store, and the other parameters, that the pool was made with.
	Store  string   `json:"store"`
	Shape  []string `json:"shape,omitempty"`
	folder string
}

const dataFile = "pool.json"

// OpenData opens a folder, which need not exist. Errors wrap ErrFolder or ErrRecord. They also wrap
// ErrVersion if another version of farkv made the record. They wrap ErrData if the folder holds
// memory of nodes and no record: making the pool was interrupted, or the record was removed. With
// that error the Data is returned, too, so that Files can name the memory.
func OpenData(folder string) (*Data, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	d := &Data{folder: folder}
	parent, err := os.OpenFile(filepath.Dir(folder), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	defer parent.Close()
	f, err := openFolder(parent, folder, othersWrite)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := readOwn(f, dataFile, othersWrite)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if left := d.Files(); len(left) > 0 {
			return d, fmt.Errorf("%w: %s holds %s, and no %s", ErrData, folder, filepath.Base(left[0]), dataFile)
		}
		return d, nil
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%w: %s of %s: %w", ErrRecord, dataFile, folder, err)
	}
	if d.Version > version {
		return nil, fmt.Errorf("%w: %s of %s: %w: version %d, and this one reads %d", ErrRecord, dataFile, folder,
			ErrVersion,
			d.Version, version)
	}
	if d.Version != version || len(d.Addresses) == 0 || d.Memory == 0 {
		return nil, fmt.Errorf("%w: %s of %s: version %d, %d nodes of %d bytes", ErrRecord, dataFile, folder, d.Version,
			len(d.Addresses), d.Memory)
	}
	return d, nil
}

// Folder returns the folder's path.
func (d *Data) Folder() string { return d.folder }

// File returns the path of a node's memory.
func (d *Data) File(node int) string {
	return filepath.Join(d.folder, fmt.Sprintf("node-%d.pmem", node))
}

// Files returns the paths of the memory of all nodes that exist.
func (d *Data) Files() []string {
	// The pattern is well-formed, unless the folder has an odd name.
	all, _ := filepath.Glob(filepath.Join(d.folder, "node-*.pmem"))
	return all
}

// Make makes the folder if it does not exist.
func (d *Data) Make() error {
	if err := os.Mkdir(d.folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", ErrFolder, err)
	}
	return nil
}

// Made notes that a pool was made of the nodes at these addresses. When it returns, the note
// survives a loss of power, as the nodes' memory may. The record is renamed into place: a crash
// leaves the old state or the new one.
func (d *Data) Made(addresses []string) error {
	d.Version, d.Addresses = version, slices.Clone(addresses)
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(d.folder, dataFile)
	if err = writeSynced(name+".new", append(text, '\n')); err == nil {
		err = os.Rename(name+".new", name)
	}
	if err == nil {
		err = syncFolder(d.folder)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(d.folder))
	}
	if err != nil {
		return fmt.Errorf("note the pool in %s: %w", d.folder, err)
	}
	return nil
}

// writeSynced writes a file and syncs it.
func writeSynced(name string, p []byte) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	return errors.Join(err, f.Sync(), f.Close())
}

// syncFolder makes the names in a folder durable.
func syncFolder(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// RemoveData removes the memory of a pool's nodes from a folder, and the folder itself if nothing
// else is in it. The record goes first: a crash leaves memory that means nothing.
func RemoveData(folder string) error {
	d := Data{folder: folder}
	err := os.Remove(filepath.Join(folder, dataFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, name := range d.Files() {
		err = errors.Join(err, os.Remove(name))
	}
	if wrong := os.Remove(folder); !errors.Is(wrong, unix.ENOTEMPTY) && !errors.Is(wrong, fs.ErrNotExist) {
		err = errors.Join(err, wrong)
	}
	if err != nil {
		return fmt.Errorf("remove what %s holds: %w", folder, err)
	}
	return nil
}
