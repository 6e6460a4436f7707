package ops

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/check/explore"
)

// TestPlans plays what farkv sim fuzz has found wrong, and is right now.
func TestPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/plans-*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no plans: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "plans-"), ".txt")
		t.Run(name, func(t *testing.T) {
			k, err := stores.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			explore.Plans(t, subject(k), explore.File(t, file)...)
		})
	}
}
