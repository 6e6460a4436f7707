package farkv_test

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

var (
	setting  = regexp.MustCompile(`(?m)^([a-z_]+):`)
	module3  = regexp.MustCompile(`(?m)^ +(?:- )?([a-z_]+\.[a-z_]+\.[a-z_]+):`)
	internal = "What follows is derived" // settings behind it are not for users
)

// roleViolations keeps what ansible/ promises: each role has a README and describes each of its
// settings, both there and where Ansible checks them; modules are Ansible's own; and no host's key
// goes unchecked.
func roleViolations(root fs.FS) (all []string, err error) {
	roles, err := fs.Glob(root, "ansible/roles/*")
	if err != nil {
		return nil, err
	}
	for _, role := range roles {
		text := func(name string) string {
			b, err := fs.ReadFile(root, path.Join(role, name))
			if err != nil {
				all = append(all, path.Join(role, name)+" is missing")
			}
			return string(b)
		}
		specs, page := text("meta/argument_specs.yml"), text("README.md")
		defaults, _, _ := strings.Cut(text("defaults/main.yml"), internal)
		for _, m := range setting.FindAllStringSubmatch(defaults, -1) {
			if !strings.Contains(specs, "\n      "+m[1]+":\n") {
				all = append(all, role+": "+m[1]+" is not in meta/argument_specs.yml")
			}
			if path.Base(role) != "settings" && !strings.Contains(page, "`"+m[1]+"`") {
				all = append(all, role+": "+m[1]+" is not in README.md")
			}
		}
	}
	err = fs.WalkDir(root, "ansible", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(root, p)
		for _, m := range module3.FindAllStringSubmatch(string(b), -1) {
			tasks := path.Dir(p) == "ansible" || strings.Contains(p, "/tasks/") || strings.Contains(p, "/handlers/")
			if tasks && !strings.HasPrefix(m[1], "ansible.builtin.") {
				all = append(all, p+": "+m[1]+" is no module of ansible.builtin, and ansible-core has no other")
			}
		}
		if strings.Contains(strings.ReplaceAll(string(b), " ", ""), "StrictHostKeyChecking=no") {
			all = append(all, p+": a host's key is checked")
		}
		return err
	})
	return all, err
}

func TestRoles(t *testing.T) {
	all, err := roleViolations(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		t.Error(b)
	}
}

func TestRolesTeeth(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	root := fstest.MapFS{
		"ansible/roles/a/README.md":               file("| `a_known` | |"),
		"ansible/roles/a/meta/argument_specs.yml": file("options:\n      a_known:\n        type: str\n"),
		"ansible/roles/a/defaults/main.yml":       file("a_known: 1\na_new: 2\n"),
		"ansible/roles/a/tasks/main.yml": file("- name: X\n  community.general.ufw:\n- name: Y\n" +
			"  ansible.builtin.copy:\n"),
		"ansible/roles/b/README.md":         file(""),
		"ansible/roles/b/defaults/main.yml": file(""),
		"ansible/ansible.cfg":               file("ssh_args = -o StrictHostKeyChecking=no\n"),
	}
	all, err := roleViolations(root)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(all, "\n")
	want := []string{
		"roles/a: a_new is not in meta", "roles/a: a_new is not in README", "community.general.ufw is no module",
		"roles/b/meta/argument_specs.yml is missing", "ansible.cfg: a host's key is checked",
	}
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%q is not found in\n%s", w, got)
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d violations, want %d:\n%s", len(all), len(want), got)
	}
}
