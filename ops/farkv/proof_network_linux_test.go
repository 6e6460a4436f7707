package main

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// network is one machine's: a network namespace, which lives as long as the process that holds it,
// so that nothing is left of it however the test ends. nil is the network that the test is in.
type network struct {
	t    *testing.T
	name string
	pid  int // of the process that holds the namespace
	ip   string
}

// lan is a network of several machines. The machines, and the switch, are namespaces.
func lan(t *testing.T, names ...string) map[string]*network {
	t.Helper()
	for _, tool := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("partitions need %s (Debian: iproute2, util-linux), and to be root: sudo go test -run %s "+
				"./ops/farkv", tool, t.Name())
		}
	}
	sw := machine(t, "switch")
	if out, err := sw.command("ip", "link", "add", "br0", "type", "bridge").CombinedOutput(); err != nil {
		t.Skipf("partitions need a network bridge, and making one failed: %v: %s", err, out)
	}
	sw.does("ip", "link", "set", "br0", "up")
	all := map[string]*network{}
	for i, name := range names {
		n := machine(t, name)
		n.ip = fmt.Sprintf("10.77.0.%d", i+1)
		port := fmt.Sprint("port", i)
		sw.does("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(n.pid))
		sw.does("ip", "link", "set", port, "master", "br0")
		sw.does("ip", "link", "set", port, "up")
		n.does("ip", "link", "set", "lo", "up")
		n.does("ip", "addr", "add", n.ip+"/24", "dev", "eth0")
		n.does("ip", "link", "set", "eth0", "up")
		all[name] = n
	}
	return all
}

// machine makes a network namespace.
func machine(t *testing.T, name string) *network {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Skipf("partitions need network namespaces, and making one failed: %v: sudo go test -run %s ./ops/farkv", err,
			t.Name())
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &network{t: t, name: name, pid: cmd.Process.Pid}
}

// command is one that runs in the network.
func (n *network) command(program string, args ...string) *exec.Cmd {
	if n == nil {
		return exec.Command(program, args...)
	}
	return exec.Command("nsenter", append([]string{"-t", strconv.Itoa(n.pid), "-n", program}, args...)...)
}

func (n *network) does(program string, args ...string) {
	n.t.Helper()
	if out, err := n.command(program, args...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %s %s: %v: %s", n.name, program, strings.Join(args, " "), err, out)
	}
}

// unusedMAC is an Ethernet address that no interface has: frames to it are dropped without an
// error.
const unusedMAC = "02:00:00:00:00:01"

// cut keeps a and b from hearing of each other.
func cut(a, b *network) {
	a.t.Helper()
	a.does("ip", "neigh", "replace", b.ip, "lladdr", unusedMAC, "dev", "eth0", "nud", "permanent")
	b.does("ip", "neigh", "replace", a.ip, "lladdr", unusedMAC, "dev", "eth0", "nud", "permanent")
}

// heal undoes cut, and may do so again.
func heal(a, b *network) {
	a.t.Helper()
	a.does("ip", "neigh", "flush", "to", b.ip, "nud", "permanent", "dev", "eth0")
	b.does("ip", "neigh", "flush", "to", a.ip, "nud", "permanent", "dev", "eth0")
}
