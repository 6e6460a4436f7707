package chaos

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads"
)

// able returns an error when nodes of the pool cannot be broken in this way.
func (b *Breaker) able(w *Break) error {
	_, kills := b.pool.Fabric.(rdma.NodeKiller)
	_, device := b.pool.Fabric.(rdma.DeviceReporter)
	switch {
	case len(w.Nodes) == 0, b.here != nil && w.Kind != BreakSlow, w.Kind == BreakNode && kills:
		return nil
	case !b.addr.Remote():
		also := ""
		if w.Kind == BreakStop {
			also = "; clients can be stopped, too"
		}
		return workloads.Usagef("%v: the nodes of %s are no processes (hint: those of 'farkv up --fabric tcp "+
			"NAME' are%s)", w, b.pool.Address, also)
	case w.Kind == BreakStop, w.Kind == BreakNode:
		return workloads.Usagef("%v: the nodes of %s were not started here by 'farkv up' (hint: do it where its "+
			"process runs, or cut it off: --cut %s)", w, b.pool.Address, numbers(w.Nodes))
	case w.Kind == BreakSlow && device:
		return workloads.Usagef("%v: verbs of %s go through RDMA devices, past the nodes' processes (hint: --stop "+
			"stops a process)", w, b.pool.Address)
	}
	return nil
}

// mendTime bounds the time in which all nodes are told that a fault is over.
const mendTime = 3 * time.Second

// fault tells each node process to inject its part of a fault.
func (b *Breaker) fault(ctx context.Context, w *Break) (*Broken, error) {
	all, err := ops.ServedBy(b.pool.Address, b.pool.Fabric)
	if err != nil {
		return nil, err
	}
	id := rand.Text()
	faults := faultsOf(w, len(all), id)
	var suffering []int
	mend := func() (err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mendTime)
		defer cancel()
		for _, n := range suffering {
			one := fabrics.Break(ctx, b.addr, n, fabrics.Fault{ID: id})
			if errors.Is(one, rdma.ErrNodeDown) {
				one = nil // it has left the pool, or died: nothing lasts there
			}
			err = errors.Join(err, one)
		}
		return err
	}
	for _, n := range w.Nodes {
		if err := fabrics.Break(ctx, b.addr, n, faults[n]); err != nil {
			return nil, errors.Join(notBroken(w, err), mend())
		}
		suffering = append(suffering, n)
	}
	return &Broken{
		At: time.Now(), over: make(chan struct{}), mend: mend,
		Text: fmt.Sprintf("%s of %s: %s for %v", nodesText(w.Nodes), b.name(), suffers(w), w.For),
	}, nil
}

func nodesText(nodes []int) string {
	if len(nodes) == 1 {
		return fmt.Sprintf("node %d", nodes[0])
	}
	return "nodes " + numbers(nodes)
}

// suffers returns a text with what a fault does to its nodes.
func suffers(w *Break) string {
	switch {
	case w.Kind == BreakSlow:
		return fmt.Sprintf("verbs take %v longer", w.Slow)
	case w.Clients:
		return "cut off from clients"
	case len(w.Nodes) > 1:
		return "cut off from each other"
	}
	return "cut off from everything"
}

// faultsOf returns the fault of each node. The pool has nodes of them, witnesses included.
func faultsOf(w *Break, nodes int, id string) map[int]fabrics.Fault {
	all := map[int]fabrics.Fault{}
	for _, n := range w.Nodes {
		f := fabrics.Fault{ID: id, For: w.For}
		switch {
		case w.Kind == BreakSlow:
			f.Slow = w.Slow
		case w.Clients:
			f.Clients = true
		case len(w.Nodes) > 1:
			f.Peers = slices.DeleteFunc(slices.Clone(w.Nodes), func(other int) bool { return other == n })
		default:
			f.Clients = true
			for other := range nodes {
				if other != n {
					f.Peers = append(f.Peers, other)
				}
			}
		}
		all[n] = f
	}
	return all
}

// notBroken adds a hint to the error of a node that refuses a fault.
func notBroken(w *Break, err error) error {
	switch {
	case errors.Is(err, rdma.ErrNotSupported):
		return fmt.Errorf("%v: %w (hint: a node of an older farkv knows no faults, and one with an RDMA device no "+
			"slow verbs)", w, err)
	case errors.Is(err, rdma.ErrHeld):
		return fmt.Errorf("%v: %w (hint: 'farkv status' shows for how long)", w, err)
	}
	return fmt.Errorf("%v: %w", w, err)
}

// stopNode stops the process of a node that was started on this machine.
func (b *Breaker) stopNode(node int, d time.Duration) (*Broken, error) {
	process, err := b.here.Find(node)
	if err == nil && process == nil {
		err = fmt.Errorf("its process is gone (hint: 'farkv status %s' shows the nodes)", b.name())
	}
	if err != nil {
		return nil, fmt.Errorf("crash node %d --stop: %w", node, err)
	}
	s, err := stopProcess(process)
	if err != nil {
		return nil, fmt.Errorf("crash node %d --stop: %w", node, err)
	}
	return &Broken{
		At: time.Now(), Process: process.Pid, over: make(chan struct{}), mend: s.resume,
		Text: fmt.Sprintf("node %d of %s: stopped its process %d for %v", node, b.name(), process.Pid, d),
	}, nil
}

// stopClient stops the process of a client of this machine.
func (b *Breaker) stopClient(c rdma.Client, w *Break) (*Broken, error) {
	process, err := b.processOf(c)
	if err != nil {
		return nil, err
	}
	s, err := stopProcess(process)
	if err != nil {
		return nil, fmt.Errorf("crash client %d --stop: %w", c.ID, err)
	}
	done := &Broken{
		At: time.Now(), Client: ops.ClientOf(c), life: c.Life, Process: c.PID, over: make(chan struct{}),
		mend: s.resume,
		Text: fmt.Sprintf("%sclient %d %q of %s: stopped its process %d for %v", masterly(w.Master), c.ID, c.Name,
			b.name(), c.PID, w.For),
	}
	for _, other := range b.pool.Fabric.Clients() {
		if other.PID == c.PID && other.ID != c.ID && other.Alive {
			done.With++
		}
	}
	return done, nil
}

// processOf returns the process of a client on this machine. It makes sure that the process is the
// client's, and not a later one with the same number.
func (b *Breaker) processOf(c rdma.Client) (*os.Process, error) {
	switch {
	case b.addr.Shared:
		return nil, workloads.Usagef("crash client %d --stop: any user may have written into %s which process that "+
			"is (hint: kill -STOP stops it)", c.ID, b.pool.Address)
	case b.addr.Remote() && !hereOnly(b.pool.Address):
		return nil, workloads.Usagef("crash client %d --stop: the clients of %s may be processes of any machine "+
			"(hint: stop that one's where it runs)", c.ID, b.pool.Address)
	}
	process, err := findHere(b.pool, c)
	if errors.Is(err, rdma.ErrClosed) {
		return nil, fmt.Errorf("crash client %d: it is dead (hint: 'farkv recover %s' recovers it)", c.ID, b.name())
	}
	return process, err
}
