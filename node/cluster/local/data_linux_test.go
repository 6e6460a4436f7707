package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestData notes a pool, and finds what was noted; what is no such folder is refused, and stays as
// it is.
func TestData(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	d, err := OpenData(folder)
	if err != nil || len(d.Addresses) > 0 || d.Folder() != folder {
		t.Fatalf("a folder that is not there: %+v, %v", d, err)
	}
	if err := errors.Join(d.Make(), d.Make()); err != nil {
		t.Fatal(err)
	}
	if d, err = OpenData(folder); err != nil || len(d.Addresses) > 0 {
		t.Fatalf("an empty folder: %+v, %v", d, err)
	}
	if err := os.WriteFile(d.File(1), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if left, err := OpenData(folder); !errors.Is(err, ErrData) || !slices.Equal(left.Files(), []string{d.File(1)}) {
		t.Errorf("a pool that was not finished: %+v, %v", left, err)
	}
	d.Memory, d.Power, d.Store, d.Shape = 4096, true, "fusee", []string{"--nodes=2"}
	if err := d.Made([]string{"a:1", "b:2"}); err != nil {
		t.Fatal(err)
	}
	again, err := OpenData(folder)
	if err != nil || again.Memory != 4096 || !again.Power || again.Store != "fusee" ||
		!slices.Equal(again.Shape, d.Shape) ||
		!slices.Equal(again.Addresses, []string{"a:1", "b:2"}) {
		t.Errorf("%+v, %v; want %+v", again, err, d)
	}
	for _, text := range []string{"", "{}", `{"version":2,"addresses":["a:1"],"memory":1}`,
		`{"version":1,"memory":1}`} {
		if err := os.WriteFile(filepath.Join(folder, dataFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenData(folder)
		if other := strings.Contains(text, `"version":2`); !errors.Is(err, ErrRecord) ||
			errors.Is(err, ErrVersion) != other {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenData(folder); !errors.Is(err, ErrFolder) {
		t.Errorf("a folder that others may write to: %v", err)
	}
}

// TestRemoveData removes what was made, and nothing else.
func TestRemoveData(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	d, err := OpenData(folder)
	if err == nil {
		err = errors.Join(d.Make(), os.WriteFile(d.File(0), nil, 0o600), d.Made([]string{"a:1"}))
	}
	other := filepath.Join(folder, "other")
	if err = errors.Join(err, os.WriteFile(other, nil, 0o600), RemoveData(folder)); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("%v are left, %v", left, err)
	}
	if err := errors.Join(os.Remove(other), RemoveData(folder), RemoveData(folder)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}
