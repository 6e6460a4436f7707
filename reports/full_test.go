package reports

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/reports/eval/evaltest"
)

func TestMain(m *testing.M) { evaltest.Main(m) }

// TestFull makes the files of verdicts at the full size, which takes some ten minutes a paper on
// two cores that are idle:
//
//	FARKV_LONG=1 go test ./reports -run TestFull -timeout 3h
//
// It is to be done again whenever a report, a store, or the simulator is changed in what it
// measures.
func TestFull(t *testing.T) {
	if os.Getenv("FARKV_LONG") == "" {
		t.Skip("takes half an hour: set FARKV_LONG=1")
	}
	for _, p := range Papers {
		t.Run(p.Name, func(t *testing.T) {
			r, err := p.Report(context.Background(), eval.Options{Seed: 1, Say: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			outcomes := evaltest.Audit(t, r)
			text := "# Made by FARKV_LONG=1 go test ./reports -run TestFull\n"
			for _, about := range slices.Sorted(maps.Keys(outcomes)) {
				text += fmt.Sprintf("%s %s\n", about, outcomes[about])
			}
			file := filepath.Join(strings.ToLower(p.Name), evaltest.FullFile)
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}
