// Package consultest runs a real Consul agent for the time of a test.
//
// FARKV_CONSUL names the binary; by default it is the one that 'make consul' built. Without a
// binary the tests are skipped and say so.
package consultest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// version is that of the agent that .ci/consul builds.
const version = "1.21.0"

// patience bounds how long an agent may take to become leader.
const patience = time.Minute

// Agent is one Consul server in a process of its own, which is its own leader. Its state is in a
// folder of the test.
type Agent struct {
	Address string // HOST:PORT
	t       testing.TB
	path    string
	folder  string
	cmd     *exec.Cmd // nil: it was killed
}

// Binary returns the path of the agent, or skips the test.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("FARKV_CONSUL"); path != "" {
		return path
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if home, err := os.UserHomeDir(); cache == "" && err == nil {
		cache = filepath.Join(home, ".cache")
	}
	path := filepath.Join(cache, "farkv", "consul-"+version, "consul")
	if _, err := os.Stat(path); err != nil {
		t.Skip("no Consul agent to test against: 'make consul' builds one, or FARKV_CONSUL names one")
	}
	return path
}

// Start runs an agent on free loopback ports until the test ends, and waits until it leads. The
// settings are added to its configuration. If they require tokens, the environment must have one,
// as for every client of Consul.
func Start(t testing.TB, settings map[string]any) *Agent {
	t.Helper()
	path := Binary(t)
	ports := freePorts(t, 3)
	a := &Agent{Address: fmt.Sprintf("127.0.0.1:%d", ports[0]), t: t, path: path, folder: memory(t)}
	config := map[string]any{
		"server": true, "bootstrap_expect": 1, "node_name": "test", "datacenter": "test", "bind_addr": "127.0.0.1",
		"data_dir": filepath.Join(a.folder, "data"), "disable_update_check": true, "log_level": "warn",
		"performance": map[string]any{"raft_multiplier": 1},
		"ports": map[string]int{"http": ports[0], "server": ports[1], "serf_lan": ports[2],
			"serf_wan": -1, "dns": -1, "grpc": -1, "grpc_tls": -1, "https": -1},
	}
	maps.Copy(config, settings)
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.file("config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Kill()
		if text, err := os.ReadFile(a.file("log")); err == nil && t.Failed() {
			t.Logf("Consul's agent:\n%s", text)
		}
	})
	a.Start()
	return a
}

// memory returns a folder in memory if there is one: an agent syncs its state, and would wait for
// other writes to the disk.
func memory(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("/dev/shm", "farkv-consul-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	return folder
}

func (a *Agent) file(name string) string { return filepath.Join(a.folder, name) }

// Ports of agents are below those that systems give to listeners on port 0 and to connections: an
// agent listens a second after it was started, and would find such a port taken.
const (
	firstPort = 20000
	lastPort  = 29999
)

// freePorts returns n ports without a listener, which no other caller is given until the test ends:
// a listener of the test keeps the port in front of them.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var err error
	for guard := firstPort; guard+n <= lastPort; guard += n + 1 {
		var kept net.Listener
		if kept, err = listen(guard); err != nil {
			continue
		}
		var ports []int
		for port := guard + 1; port <= guard+n && err == nil; port++ {
			ports = append(ports, port)
			err = isFree(port)
		}
		if err != nil {
			kept.Close()
			continue
		}
		t.Cleanup(func() { kept.Close() })
		return ports
	}
	t.Fatalf("no %d free ports from %d to %d: %v", n+1, firstPort, lastPort, err)
	return nil
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

func isFree(port int) error {
	l, err := listen(port)
	if err != nil {
		return err
	}
	return l.Close()
}

// Start runs the agent again after Kill, with its state, and waits until it leads.
func (a *Agent) Start() {
	a.t.Helper()
	log, err := os.OpenFile(a.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	defer log.Close()
	a.cmd = exec.Command(a.path, "agent", "-config-file", a.file("config.json"))
	a.cmd.Stdout, a.cmd.Stderr, a.cmd.SysProcAttr = log, log, dieWithUs
	if err := a.cmd.Start(); err != nil {
		a.cmd = nil
		a.t.Fatal(err)
	}
	if err := a.leads(); err != nil {
		a.t.Fatalf("Consul's agent does not lead after %v: %v", patience, err)
	}
}

// leads waits until the agent answers a read that only a leader answers.
func (a *Agent) leads() error {
	config := api.DefaultConfig()
	config.Address = a.Address
	client, err := api.NewClient(config)
	if err != nil {
		return err
	}
	defer config.Transport.CloseIdleConnections()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		o := &api.QueryOptions{RequireConsistent: true}
		_, _, err := client.KV().Get("probe", o.WithContext(ctx))
		cancel()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// Pause stops the agent's process, so that it accepts connections and answers no request.
func (a *Agent) Pause() {
	a.t.Helper()
	a.signal(syscall.SIGSTOP)
	// The signal is asynchronous: the process is stopped when its last thread is.
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(a.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == nil && status.Stopped() {
			return
		}
		if err != syscall.EINTR {
			a.t.Fatalf("Consul's agent was to stop: %v, %v", status, err)
		}
	}
}

// Resume continues the agent's process.
func (a *Agent) Resume() { a.signal(syscall.SIGCONT) }

func (a *Agent) signal(s syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(s); err != nil {
		a.t.Fatalf("%v to Consul's agent: %v", s, err)
	}
}

// Kill ends the agent's process at once, if it runs.
func (a *Agent) Kill() {
	if a.cmd == nil {
		return
	}
	a.cmd.Process.Kill()
	if err := a.cmd.Wait(); err != nil && !strings.Contains(err.Error(), "killed") {
		a.t.Errorf("Consul's agent: %v", err)
	}
	a.cmd = nil
}
