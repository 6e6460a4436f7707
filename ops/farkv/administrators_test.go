package main

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/node/cluster/consul"
	"github.com/farkv/farkv/node/fabrics"
)

// TestAdministrators: the commands that say to memory nodes that they are an administrator's are
// these, and no others.
func TestAdministrators(t *testing.T) {
	want := []string{"farkv check", "farkv crash", "farkv doctor", "farkv down", "farkv list", "farkv recover",
		"farkv status"}
	t.Cleanup(func() {
		fabrics.Administer(false)
		consul.BeImpatient()
	})
	var got []string
	var visit func(cmd *cobra.Command)
	root := newRoot()
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		if err := root.PersistentPreRunE(cmd, nil); err != nil { // as each of them is begun
			t.Errorf("%s: %v", cmd.CommandPath(), err)
		}
		s, err := fabrics.Security()
		if err != nil {
			t.Fatal(err)
		}
		if s.Admin {
			got = append(got, cmd.CommandPath())
		}
	}
	visit(root)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if len(administrators) != len(got) {
		t.Errorf("%q names a command that there is not", administrators)
	}
}
