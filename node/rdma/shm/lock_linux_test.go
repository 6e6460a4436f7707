package shm

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestLivesOfOneProcess has workers of one process take and leave the same slot: a slot is seen to
// be held while a worker has it. Otherwise a fence would not wait for the worker's verbs.
func TestLivesOfOneProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lives")
	var files [2]*os.File
	for i := range files {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = f
	}
	l := &fileLives{own: ownLives{of: map[rdma.ClientID]bool{}}, file: files[0], probe: files[1]}
	defer l.close()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20_000 {
				ok, err := l.take(1)
				if err != nil {
					t.Error(err)
					return
				}
				if !ok {
					continue
				}
				if held, err := l.held(1); !held || err != nil {
					t.Errorf("a slot that was taken is held: %v, %v", held, err)
				}
				if err := l.drop(1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}
