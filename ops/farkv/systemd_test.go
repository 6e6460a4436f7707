package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// hardening is what every unit has.
var hardening = []string{
	"User=farkv", "NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes",
	"PrivateDevices=yes",
	"CapabilityBoundingSet=", "MemoryDenyWriteExecute=yes", "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
	"SystemCallFilter=@system-service", "UMask=0077",
}

// Units start commands that there are, with flags that these have, and leave them time to drain.
func TestUnits(t *testing.T) {
	units, err := filepath.Glob("../systemd/*.service")
	if err != nil || len(units) != 2 {
		t.Fatalf("%v, %v", units, err)
	}
	for _, name := range units {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := map[string]bool{}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			lines[line] = true
			if command, ok := strings.CutPrefix(line, "ExecStart="); ok {
				if wrong := startsFarkv(command); wrong != "" {
					t.Errorf("%s: %s", name, wrong)
				}
			}
		}
		for _, want := range hardening {
			if !lines[want] {
				t.Errorf("%s lacks %s", name, want)
			}
		}
		// Nothing else may be written to, and the unit's comment has a node remember there.
		if strings.Contains(string(text), "--pmem /var/lib/farkv/") && !lines["StateDirectory=farkv"] {
			t.Errorf("%s: the folder of --pmem cannot be written to", name)
		}
	}
}

// What a unit gives up for RDMA is this and nothing else: the devices, and the question which there
// are.
func TestDropIn(t *testing.T) {
	const folder = "../systemd/farkv-node@.service.d/"
	text, err := os.ReadFile(folder + "rdma.conf")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(strings.TrimSuffix(folder, ".d/")); err != nil {
		t.Error(err)
	}
	var settings []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			settings = append(settings, line)
		}
	}
	want := []string{"[Service]", "PrivateDevices=no", "DevicePolicy=closed", "DeviceAllow=char-infiniband_verbs rw",
		"RestrictAddressFamilies=AF_NETLINK", "LimitMEMLOCK=infinity"}
	if !slices.Equal(settings, want) {
		t.Errorf("%q, want %q", settings, want)
	}
}

// startsFarkv tells what is wrong with the command line of a unit.
func startsFarkv(line string) string {
	words := strings.Fields(line)
	if filepath.Base(words[0]) != "farkv" {
		return "starts " + words[0]
	}
	if len(words) == 3 && words[1] == "help" {
		words = append(words[:1], words[2], "--help")
	}
	cmd, rest, err := newRoot().Find(words[1:])
	if err != nil || cmd.RunE == nil || cmd.Parent() == nil {
		return "no command of farkv: " + line
	}
	for _, w := range rest {
		if w == "--help" {
			continue
		}
		flag, is := strings.CutPrefix(w, "--")
		if is && cmd.Flags().Lookup(flag) == nil {
			return "farkv " + cmd.Name() + " has no --" + flag
		}
	}
	return ""
}

func TestUnitsTeeth(t *testing.T) {
	for line, want := range map[string]string{
		"/usr/bin/true --x": "starts", "/bin/farkv": "no command", "/bin/farkv nosuch": "no command",
		"/bin/farkv tcp":               "no command",
		"/bin/farkv node --memry 8GiB": "has no --memry", "/bin/farkv node --memory 8GiB": "",
	} {
		if got := startsFarkv(line); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
