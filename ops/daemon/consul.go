package daemon

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/farkv/farkv/node/cluster/consul"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
)

// announce registers the node with Consul, where its operator wants that, until leave is called.
func (c *NodeConfig) announce(n *nodeServer) (leave func() error, err error) {
	if c.Consul == "" {
		return func() error { return nil }, nil
	}
	host, _, err := net.SplitHostPort(n.Addr())
	if err != nil {
		return nil, fmt.Errorf("register with Consul: %w", err)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return nil, workloads.Usagef("--listen %s with --consul: others must learn one address: name the one that "+
			"they reach", c.Listen)
	}
	agent, err := consul.Dial(c.Consul)
	if errors.Is(err, consul.ErrAddress) {
		return nil, workloads.Usagef("--consul: %v", err)
	}
	if err != nil {
		return nil, err
	}
	r, err := agent.Register(consul.Member{
		Kind: consul.Node, ID: "farkv-node-" + n.Addr(), Address: n.Addr(),
		Meta: map[string]string{"memory": fmt.Sprint(c.Memory), fabrics.MetaFabric: n.Info().Fabric},
	}, n.pulse)
	if err != nil {
		agent.Close()
		return nil, fmt.Errorf("--consul: %w (hint: does the agent run? 'farkv help consul' tells what it needs)", err)
	}
	consul.BeImpatient() // an agent that goes away later is tried again with the next heartbeat
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		n.follow(r, stop)
	}()
	return func() error {
		close(stop)
		<-stopped
		defer agent.Close()
		return r.Close()
	}, nil
}

// membership is how often a node looks whether it got another pool.
const membership = 250 * time.Millisecond

// follow tells Consul to which pool the node belongs. What fails is done again with the next
// heartbeat of r.
func (n *nodeServer) follow(r *consul.Registration, stop <-chan struct{}) {
	tick := time.NewTicker(membership)
	defer tick.Stop()
	told := ""
	for {
		pool, index := n.belongs()
		if pool != told && r.Join(pool, index) == nil {
			told = pool
		}
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// belongs returns the name that the node's pool has with Consul, or else its ID, and the node's
// number there; "": it is in no pool.
func (n *nodeServer) belongs() (pool string, index int) {
	in := n.Info().Pool
	if in == nil {
		return "", 0
	}
	if _, name, ok := strings.Cut(in.Registry, "/"); ok {
		return name, in.Index
	}
	return in.ID, in.Index
}

// pulse is what Consul shows of the node.
func (n *nodeServer) pulse() (well bool, text string) {
	i := n.Info()
	if err := healthOf(&i); err != nil {
		return false, err.Error()
	}
	text = "serves " + format.Size(i.Memory)
	if i.Pool == nil {
		return true, text + ", in no pool"
	}
	text += fmt.Sprintf(", epoch %d", i.Epoch)
	if left, needs := ops.LeaseOf(&i); needs {
		text += fmt.Sprintf(", lease for another %v", left.Round(time.Millisecond))
	}
	return true, text
}
