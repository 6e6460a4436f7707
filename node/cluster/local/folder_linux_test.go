package local

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// another is a user that this process is not.
const another = 12345

// chown gives a file away, which root alone can do.
func chown(t *testing.T, path string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	if err := os.Lchown(path, another, another); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// behindLink moves a folder or a file elsewhere and leaves a link to it.
func behindLink(t *testing.T, path string) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "elsewhere")
	if err := errors.Join(os.Rename(path, to), os.Symlink(to, path)); err != nil {
		t.Fatal(err)
	}
}

// What another user could have written, or can change, is not read: each of these was taken for the
// user's own.
func TestForeignFolders(t *testing.T) {
	root, folder := func(*Pool) string { return Root() }, (*Pool).Folder
	record := func(p *Pool) string { return filepath.Join(p.Folder(), recordFile) }
	parent := func(*Pool) string { return filepath.Dir(Root()) }
	for name, tt := range map[string]struct {
		at   func(*Pool) string
		harm func(t *testing.T, path string)
		want error
		says string
	}{
		"the root is another user's": {root, chown, ErrFolder, "its owner is user 12345"},
		"the root is open to others": {root, func(t *testing.T, p string) { chmod(t, p, 0o777) }, ErrFolder,
			"others may use"},
		"the root is a link":           {root, behindLink, ErrFolder, "a link or a file"},
		"its parent is another user's": {parent, chown, ErrFolder, "may replace"},
		"its parent is open, and no /tmp": {parent, func(t *testing.T, p string) { chmod(t, p, 0o777) }, ErrFolder,
			"may replace"},
		"a folder is another user's": {folder, chown, ErrFolder, "its owner is user 12345"},
		"a folder is open to others": {folder, func(t *testing.T, p string) { chmod(t, p, 0o770) }, ErrFolder,
			"others may use"},
		"a folder is a link":         {folder, behindLink, ErrFolder, "a link or a file"},
		"a record is another user's": {record, chown, ErrRecord, "not a file of this user"},
		"a record can be written by all": {record, func(t *testing.T, p string) { chmod(t, p, 0o666) }, ErrRecord,
			"others may change"},
		"a record is a link": {record, behindLink, ErrRecord, "too many levels of symbolic links"},
		"a record is a pipe without an end": {record, func(t *testing.T, p string) {
			if err := errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, ErrRecord, "not a file of this user"},
	} {
		t.Run(name, func(t *testing.T) {
			place(t)
			p, err := Create("pool")
			if err == nil {
				err = p.Made("tcp:127.0.0.1:1")
			}
			if err != nil {
				t.Fatal(err)
			}
			tt.harm(t, tt.at(p))
			if got, err := Open("pool"); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("open: %+v, %v; want %v: %s", got, err, tt.want, tt.says)
			}
			if addr, err := Resolve("pool"); addr != "" || !errors.Is(err, tt.want) {
				t.Errorf("resolve: %q, %v", addr, err)
			}
			if strings.Contains(name, "root") || strings.Contains(name, "parent") {
				if names, err := List(); !errors.Is(err, ErrFolder) {
					t.Errorf("list: %v, %v", names, err)
				}
				if _, err := Create("second"); !errors.Is(err, ErrFolder) {
					t.Errorf("create: %v", err)
				}
			}
		})
	}
}

// A sticky folder such as /tmp is a parent in which others cannot replace what is not theirs.
func TestStickyParent(t *testing.T) {
	place(t)
	chmod(t, filepath.Dir(Root()), 0o777|fs.ModeSticky)
	create(t)
	if _, err := Open("pool"); err != nil {
		t.Error(err)
	}
}

func TestToken(t *testing.T) {
	place(t)
	p := create(t)
	path, err := p.MakeToken()
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 || filepath.Dir(path) != p.Folder() || st.Size() != 2*tokenBytes+1 {
		t.Errorf("%s: %v, %v", path, st, err)
	}
	if _, err := p.MakeToken(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	if err := p.Start(t.Context(), 2, kinds("node-good", "node-good")); err != nil {
		t.Fatal(err)
	}
	if got := TokenFile([]string{"10.0.0.1:7070", p.Nodes[1].Address}); got != path {
		t.Errorf("%q, want %q", got, path)
	}
	if got := TokenFile([]string{"10.0.0.1:7070"}); got != "" {
		t.Errorf("another machine's node asks for %q", got)
	}
	if _, err := p.Kill(1); err != nil {
		t.Fatal(err)
	}
	if got := TokenFile([]string{p.Nodes[1].Address}); got != "" {
		t.Errorf("a node that ended, whose port another one may have, asks for %q", got)
	}
}

// A process ends by itself if its starter dies before it has recorded the process.
func TestStarterDiesBeforeTheRecord(t *testing.T) {
	if err := AwaitRecord(strings.NewReader(recorded)); err != nil {
		t.Error(err)
	}
	for _, said := range []string{"", "rec"} {
		if err := AwaitRecord(strings.NewReader(said)); !errors.Is(err, ErrStart) {
			t.Errorf("%q: %v", said, err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	node := exec.Command(exe, "node-good")
	var out bytes.Buffer
	node.Stdout = &out
	gate, err := node.StdinPipe()
	if err == nil {
		err = node.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() { node.Process.Kill() })
	defer late.Stop()
	gate.Close() // as the kernel does when the starter dies
	if err := node.Wait(); node.ProcessState.ExitCode() != 2 || out.Len() > 0 {
		t.Errorf("it ended with %v and said %q", err, &out)
	}
}
