package shm

import (
	"os"
	"testing"
)

func (m benchmark) onFile(b *testing.B) {
	inFolderOfMemory(b)
	f, err := Create("bench", m.geometry(), nil, commitAll)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	m.run(b, f)
}

// inFolderOfMemory is inFolder on a tmpfs.
func inFolderOfMemory(b *testing.B) {
	d, err := os.MkdirTemp("/dev/shm", "farkv-bench-")
	if err != nil {
		b.Skipf("no shared memory here: %v", err)
	}
	b.Cleanup(func() { os.RemoveAll(d) })
	b.Setenv("FARKV_SHM_DIR", d)
}

func BenchmarkFileRead128Hot(b *testing.B) { hot.onFile(b) }

func BenchmarkFileRead1KCold(b *testing.B) { cold.onFile(b) }
