package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops"
)

// Every option of every store, and what the store can do, is where users look for it.
func TestOptionsAreRendered(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	root := newRoot()
	for _, name := range stores.Names() {
		kind, err := stores.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range kind.Options {
			for _, command := range []string{"up", "sim run", "sim fuzz"} {
				cmd, _, err := root.Find(strings.Fields(command))
				if err != nil {
					t.Fatal(err)
				}
				flag := cmd.Flags().Lookup(o.Name)
				wanted := o.When == stores.Made || command != "up"
				if (flag != nil) != wanted || flag != nil && !strings.Contains(flag.Usage, o.Help()) {
					t.Errorf("%s: farkv %s: --%s is %+v", name, command, o.Name, flag)
				}
			}
		}
		if kind.Serve != nil { // its pools are on node processes
			continue
		}
		status := statusOf(t, name)
		// A variant has the format of another store, and its pools are that one's.
		if kind, err = stores.Lookup(status.Store); err != nil {
			t.Fatal(err)
		}
		var shown []string
		for _, s := range status.Options {
			if shown = append(shown, s.Name); s.Doc == "" || s.When == "" {
				t.Errorf("%s: status -o json: %+v", name, s)
			}
		}
		for _, o := range kind.Options {
			parts := o.Parts
			if parts == nil {
				parts = []stores.Option{o}
			}
			for _, part := range parts {
				if !slices.Contains(shown, part.Name) {
					t.Errorf("%s: status -o json: no %s", name, part.Name)
				}
			}
		}
		if !slices.Equal(status.Can, kind.Can()) {
			t.Errorf("%s can %q, and status says %q", name, kind.Can(), status.Can)
		}
	}
}

// statusOf returns what status -o json says of a new pool of a store. Of a variant it says the
// store that has the format.
func statusOf(t *testing.T, store string) (s ops.State) {
	t.Helper()
	p, err := stores.Create("shm:"+store, store, stores.Params{Records: 100, Clients: 8})
	if err == nil {
		err = p.Close()
	}
	if err := errors.Join(err, json.Unmarshal([]byte(answerOf(t, "status", store, "-o", "json")), &s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// answerOf returns what a command prints.
func answerOf(t *testing.T, args ...string) string {
	t.Helper()
	var out, wrong strings.Builder
	if status := execute(t.Context(), args, strings.NewReader(""), &out, &wrong); status != 0 {
		t.Fatalf("farkv %s: %d: %s", strings.Join(args, " "), status, &wrong)
	}
	return out.String()
}
