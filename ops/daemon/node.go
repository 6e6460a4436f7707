// Package daemon runs the processes that serve until they are told to end: memory nodes, with the
// servers of stores beside them, and candidates for a pool's master.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/metrics"
	"github.com/farkv/farkv/workloads"
)

// NodeConfig is the configuration of a memory node. A path or address that is "" is not used.
type NodeConfig struct {
	Listen     string // HOST:PORT; port 0 picks one
	Memory     uint64 // bytes
	Overcommit bool   // serve even more of them than there are
	File       string // backs the memory
	// file or DAX device that holds the memory, and all that the node remembers
	PMem                     string
	Power                    bool                 // what is answered survives a loss of power there
	Fabric                   string               // of the pools that it is for: of fabrics.NodeFabrics
	Device                   fabrics.DeviceChoice // where the Fabric needs one
	TokenFile, ReadTokenFile string
	TLSCert, TLSKey, TLSCA   string
	Consul                   string // HOST:PORT of the agent that is to know of the node
	Metrics                  string // HOST:PORT at which to serve them
	MetricsPublic            bool   // even when others can reach that
	Connections              int
	PIDFile                  string
	Drain                    time.Duration // for clients to go, at the end
	Log                      *slog.Logger
	IPMCTL                   pmem.IPMCTL // reads the counters of persistent memory
	PMemModel                bool        // a model of persistent memory counts in its place
}

// Serving is a memory node that serves.
type Serving struct {
	Address  string `json:"address"`
	Memory   uint64 `json:"memory"`
	Loopback bool   `json:"loopback_only"` // it has no token: only this machine may reach it
	TLS      string `json:"tls,omitempty"` // on, or mutual
	Device   string `json:"rdma_device,omitempty"`
	Port     int    `json:"rdma_port,omitempty"`
	Metrics  string `json:"metrics,omitempty"`
	// Survives is what the memory survives, and SurvivesBy is by which means; "": nothing.
	Survives   string `json:"survives,omitempty"`
	SurvivesBy string `json:"survives_by,omitempty"`
	PID        int    `json:"pid"`
}

// ServeNode serves a memory node until ctx ends, and drains it then. It calls ready once, as soon
// as the node serves.
func ServeNode(ctx context.Context, c NodeConfig, ready func(*Serving) error) (err error) {
	n, err := c.serve()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	s := &Serving{
		Address: n.Addr(), Memory: c.Memory, Loopback: n.Security.Token == nil, TLS: tlsMode(n.Security.TLS),
		PID: os.Getpid(),
	}
	if n.Region != nil {
		survives, by := n.Region.Survives()
		s.Survives, s.SurvivesBy = survives.String(), by
	}
	reading, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	if n.pmem != nil {
		beside.Go(func() { n.pmem.sample(reading) })
	}
	defer beside.Wait()
	defer stop()
	if n.device != nil {
		s.Device, s.Port = n.device.Port()
	}
	if c.Metrics != "" {
		m, wrong := metrics.Serve(c.Metrics, c.MetricsPublic, func() error {
			i := n.Info()
			return healthOf(&i)
		}, metrics.OfNode(n.Info))
		if wrong != nil {
			return metrics.Misuse(wrong, "--metrics-public")
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		s.Metrics = m.URL()
	}
	leave, err := c.announce(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	if c.PIDFile != "" {
		if err := writePID(c.PIDFile); err != nil {
			return err
		}
		defer os.Remove(c.PIDFile)
	}
	beside.Go(func() { n.attend(reading, &c) })
	if err := ready(s); err != nil {
		return err
	}
	<-ctx.Done()
	beside.Wait() // the server ends before its node does
	return n.drain(&c)
}

// nodeServer is a memory node of this process.
type nodeServer struct {
	*fabrics.Node
	fabrics.NodeConfig
	device *fabrics.Device // nil: it has none
	pmem   *pmemSampler    // nil: a model counts
}

// Close ends the node, and closes its device after that.
func (n *nodeServer) Close() error {
	err := n.Node.Close()
	if n.device != nil {
		err = errors.Join(err, n.device.Close())
	}
	return err
}

func (c *NodeConfig) serve() (_ *nodeServer, err error) {
	n := fabrics.NodeOf(c.Memory)
	n.Listen, n.File, n.Conns, n.Log = c.Listen, c.File, c.Connections, c.Log
	var counters *pmemSampler
	switch {
	case c.PMemModel && fabrics.NeedsDevice(c.Fabric):
		return nil, workloads.Usagef("--pmem-model is for --fabric tcp: it does not see what an RNIC does")
	case c.PMemModel:
		n.Modules, n.PMem = modelPMem()
	default:
		counters = &pmemSampler{tool: c.IPMCTL}
		n.PMem = counters.last.Load
	}
	if err := c.secure(&n); err != nil {
		return nil, err
	}
	if err := c.remember(&n); err != nil {
		return nil, nodeHint(err, c)
	}
	defer func() {
		if err != nil && n.Region != nil {
			err = errors.Join(err, n.Region.Close())
		}
	}()
	if !c.Overcommit && c.PMem == "" { // persistent memory is reserved, and says itself that there is no room
		if err := fabrics.AffordNodes(c.Fabric, c.File, 1, n.Bytes()); err != nil {
			return nil, nodeHint(err, c)
		}
	}
	device, err := fabrics.OpenDevice(c.Fabric, c.Device, c.Listen)
	if err != nil {
		return nil, nodeHint(err, c)
	}
	if device != nil {
		n.Device = device
	}
	own, err := fabrics.Serve(n)
	if err != nil {
		if device != nil {
			err = errors.Join(err, device.Close())
		}
		return nil, nodeHint(err, c)
	}
	return &nodeServer{own, n, device, counters}, nil
}

// remember opens the persistent memory of a node, if its configuration names one.
func (c *NodeConfig) remember(n *fabrics.NodeConfig) error {
	switch {
	case c.PMem == "" && c.Power:
		return workloads.Usagef("--power is for --pmem")
	case c.PMem == "":
		return nil
	case c.File != "":
		return workloads.Usagef("--pmem and --file both name the memory: choose one")
	case fabrics.NeedsDevice(c.Fabric):
		return workloads.Usagef("--pmem is for --fabric tcp: what an RNIC writes is not flushed")
	}
	r, err := pmem.Open(c.PMem, fabrics.RegionOf(*n, c.Power))
	n.Region = r
	return err
}

// drain waits for a limited time until clients have left.
func (n *nodeServer) drain(c *NodeConfig) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Drain)
	defer cancel()
	c.Log.Info("draining", "connections", n.Stats().Connections, "at most", c.Drain)
	switch err := n.Shutdown(ctx); {
	case errors.Is(err, context.DeadlineExceeded):
		c.Log.Warn("clients are cut off", "connections", n.Stats().Connections)
	case err != nil:
		return fmt.Errorf("drain the node: %w", err)
	}
	return nil
}

// writePID writes this process's number, so that a reader never sees a part of it. The file is for
// the process that started the node alone: it says which process to signal.
func writePID(name string) error {
	err := os.WriteFile(name+".new", []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644)
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		return fmt.Errorf("--pid-file: %w (hint: its folder must be there, and be yours to write to)", err)
	}
	return nil
}

// nodeHint adds a hint on what an operator can do when a node does not serve.
func nodeHint(err error, c *NodeConfig) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		hint = "another process has that port: choose another one, or port 0 for a free one"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		hint = "this machine does not have that address"
	case errors.Is(err, fabrics.ErrNotBuilt), errors.Is(err, fabrics.ErrDevice):
		return workloads.Usagef("%v", err)
	case errors.Is(err, fabrics.ErrMemory):
		return workloads.Usagef("--memory: %v", err)
	case errors.Is(err, fabrics.ErrOvercommit):
		hint = "lower --memory; with --overcommit the node takes what is there, and fails when that is used up"
	case errors.Is(err, pmem.ErrSize):
		hint = "--memory has to be what it was; or name another file, or remove this one with what it holds"
	case errors.Is(err, pmem.ErrVersion):
		hint = "use the farkv that made it, or name another file"
	case errors.Is(err, pmem.ErrCut):
		hint = "put a copy back that is whole; or remove it, and the node begins anew, without what it held"
	case errors.Is(err, pmem.ErrDamaged):
		hint = "what it holds is lost: remove it, and the node begins anew"
	case errors.Is(err, syscall.EACCES) && c.File == "" && c.PMem == "":
		hint = "ports below 1024 are for the administrator"
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ENOSPC):
		hint = "there is not as much memory: lower --memory, which is " + format.Size(c.Memory)
	case errors.Is(err, fabrics.ErrFile):
		hint = "--file names a file that a memory node made, or one that is not there yet; " + filepath.Base(c.File) +
			" stays as it is"
	}
	if hint == "" {
		return err
	}
	return fmt.Errorf("%w (hint: %s)", err, hint)
}

// loopback reports whether only this machine reaches an address.
func loopback(addr string) (bool, error) {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return false, workloads.Usagef("--listen %s: want HOST:PORT: %v", addr, err)
	}
	return at.IP.IsLoopback(), nil
}

// Print implements Result.
func (s *Serving) Print(w io.Writer) {
	fmt.Fprintf(w, "serves %s at %s", format.Size(s.Memory), s.Address)
	if s.Device != "" {
		fmt.Fprintf(w, ", verbs by %s port %d", s.Device, s.Port)
	}
	if s.TLS != "" {
		fmt.Fprintf(w, ", TLS %s", s.TLS)
	}
	if s.Survives != "" {
		fmt.Fprintf(w, "; survives %s (%s)", s.Survives, s.SurvivesBy)
	}
	if s.Loopback {
		fmt.Fprint(w, "; on the loopback only, since it has no token")
	}
	if s.Metrics != "" {
		fmt.Fprintf(w, "; metrics at %s", s.Metrics)
	}
	fmt.Fprintln(w)
}

var (
	errNoLease  = errors.New("the node's lease ran out: verbs wait until it has one again")
	errExpelled = errors.New("the node was expelled from its pool: it serves no verbs")
)

// healthOf returns why a node does not execute verbs. nil: it does, or would.
func healthOf(i *fabrics.NodeInfo) error {
	switch left, needs := ops.LeaseOf(i); {
	case i.Expelled:
		return errExpelled
	case needs && left <= 0:
		return errNoLease
	}
	return nil
}
