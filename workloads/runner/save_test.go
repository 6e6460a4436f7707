package runner

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestSaveKeepsWhatIsThere: links stay links, devices devices, and files keep their modes.
func TestSaveKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("file"), []byte("old content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "file", "dangling": "new", "null": os.DevNull} {
		if err := os.Symlink(to, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{at("link"), at("dangling"), at("null"), os.DevNull, at("fresh")} {
		if err := Savable(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := Save(name, []byte("new")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"file", "new", "fresh"} {
		if b, err := os.ReadFile(at(name)); string(b) != "new" {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	for name, want := range map[string]os.FileMode{at("link"): os.ModeSymlink, at("dangling"): os.ModeSymlink,
		at("null"): os.ModeSymlink, os.DevNull: os.ModeDevice | os.ModeCharDevice, at("file"): 0} {
		info, err := os.Lstat(name)
		if err != nil || info.Mode().Type() != want {
			t.Errorf("%s is %v, %v", name, info.Mode(), err)
		}
	}
	if info, err := os.Stat(at("file")); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	if left, err := filepath.Glob(at("*.*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, name := range []string{dir, at("no/such")} {
		if Savable(name) == nil || Save(name, nil) == nil {
			t.Errorf("%s was written", name)
		}
	}
}
