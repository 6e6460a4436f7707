package tcp

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// controlPatience bounds what a node may take for draining verbs.
const controlPatience = 5 * time.Second

// view reads the board's view, and learns from it which nodes are down.
func (f *Fabric) view() (rdma.View, error) {
	v, down, err := f.board.View()
	if err != nil {
		return rdma.View{}, err
	}
	f.learn(v, down)
	return v, nil
}

// look is view, and the identities in use, of which it knows that too: see membership.Board.Look.
func (f *Fabric) look() (rdma.View, listing, error) {
	asked := realtime.Now()
	v, down, holders, err := f.board.Look()
	if err != nil {
		return rdma.View{}, listing{}, err
	}
	f.learn(v, down)
	return v, listing{holders, asked}, nil
}

// learn notes a view, and which nodes are down.
func (f *Fabric) learn(v rdma.View, down []bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n, m := range v.Members {
		if m.Gone {
			f.expelled[n] = true
		}
		if m.Gone || down[n] {
			f.downs[n].Store(true) // for good: no node comes back
		}
	}
	if v.Epoch >= f.last.Epoch {
		f.last = v
		f.last.Members = slices.Clone(v.Members)
	}
}

// down returns the error of a node that was expelled, and so serves no client any more; nil for
// others.
func (f *Fabric) down(node int) error {
	if f.downs[node].Load() {
		return fmt.Errorf("node %d was expelled: %w", node, rdma.ErrNodeDown)
	}
	return nil
}

// View returns the pool's view; while the board is out of reach, that which was seen last.
func (f *Fabric) View() rdma.View {
	v, err := f.view()
	if err == nil {
		return v
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v = f.last
	v.Members = slices.Clone(v.Members)
	return v
}

// Advance replaces the view's state.
func (f *Fabric) Advance(from, to rdma.State) (bool, error) { return f.board.Advance(from, to) }

// SetMember replaces one node's state in the view.
func (f *Fabric) SetMember(epoch uint64, node int, from, to rdma.Member) (bool, error) {
	return f.board.SetMember(epoch, node, from, to)
}

// TryMaster makes owner the pool's master if there is none.
func (f *Fabric) TryMaster(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
	return f.board.TryMaster(owner, lease)
}

// Renew prolongs a tenure.
func (f *Fabric) Renew(r rdma.Role, lease time.Duration) (rdma.Role, bool, error) {
	return f.board.Renew(r, lease)
}

// Resign ends a tenure early.
func (f *Fabric) Resign(r rdma.Role) { f.board.Resign(r) }

// Config returns the store's configuration.
func (f *Fabric) Config() (rdma.Config, error) { return f.board.Config() }

// SwapConfig replaces the store's configuration.
func (f *Fabric) SwapConfig(r rdma.Role, version uint64, data []byte) (bool, error) {
	return f.board.SwapConfig(r, version, data)
}

// AwaitConfig waits for another configuration of the store.
func (f *Fabric) AwaitConfig(version uint64, within time.Duration) (rdma.Config, error) {
	return f.board.AwaitConfig(version, within)
}

// Master returns the pool's master, and for how long yet at most it is that. It returns false if
// there is no master, or the board is out of reach.
func (f *Fabric) Master() (rdma.Role, time.Duration, bool) {
	r, left, ok, err := f.board.Master()
	return r, left, ok && err == nil
}

// serving reports whether a memory node may still execute verbs, as far as this process knows.
func (f *Fabric) serving(node int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return node < f.record.Nodes && !f.expelled[node]
}

// Fence makes every worker join the epoch before its next verb. Each node that was not expelled has
// to answer: the error wraps rdma.ErrNodeDown when one does not.
func (f *Fabric) Fence(epoch uint64) error {
	m := &message{Do: doFence, Pool: f.record.ID, Epoch: epoch}
	if err := f.each(f.serving, controlPatience, func(int) *message { return m }, nil); err != nil {
		return fmt.Errorf("fence epoch %d: %w", epoch, err)
	}
	return nil
}

// Revoke fences a client off.
func (f *Fabric) Revoke(c rdma.ClientID) error {
	if c < 1 || int(c) > f.record.Clients {
		return fmt.Errorf("revoke client %d: pool has clients 1 to %d: %w", c, f.record.Clients, rdma.ErrAccess)
	}
	all, err := f.board.Clients()
	if err != nil {
		return fmt.Errorf("revoke client %d: %w", c, err)
	}
	for _, h := range all {
		if h.ID == c {
			return f.RevokeLife(h.Client)
		}
	}
	return nil
}

// RevokeLife fences off the holder that Clients described. It marks the holder as fenced on the
// board first. So a process that finds the client dead, and the client itself, learn of it even if
// this process ends before the nodes are told.
func (f *Fabric) RevokeLife(c rdma.Client) error {
	err := f.board.MarkFenced(c)
	if err == nil {
		m := &message{Do: doRevoke, Pool: f.record.ID, Client: c.ID, Life: c.Life}
		err = f.each(f.serving, controlPatience, func(int) *message { return m }, nil)
	}
	if err != nil {
		return fmt.Errorf("revoke client %d: %w", c.ID, err)
	}
	return nil
}

// Expel makes a node one that is down for all processes. The board records it first, so that no
// other master thinks otherwise. A node that answers stops serving at once. From one that does not
// answer, a majority takes the right to serve: when the leases that it may have are over it answers
// no client any more, dead or alive.
func (f *Fabric) Expel(epoch uint64, node int) error {
	if err := f.expel(epoch, node); err != nil {
		return fmt.Errorf("expel node %d in epoch %d: %w", node, epoch, err)
	}
	return nil
}

func (f *Fabric) expel(epoch uint64, node int) error {
	if err := f.board.SetDown(epoch, node); err != nil {
		return err
	}
	f.downs[node].Store(true)
	m := &message{Do: doExpel, Pool: f.record.ID, Epoch: epoch, Node: node}
	itself := make(chan error, 1)
	if !f.tasks.Begin("expel") {
		return rdma.ErrClosed
	}
	go func() {
		defer f.tasks.End("expel")
		_, err := f.links[node].control.control(m, deadAfter)
		itself <- err
	}()
	voices := 0
	living := f.living()
	others := func(n int) bool { return n != node && living(n) }
	err := f.each(others, deadAfter, func(int) *message { return m }, func(n int, _ reply) {
		if n < f.record.voters() {
			voices++
		}
	})
	if errors.Is(err, rdma.ErrStale) {
		return err
	}
	if err := f.outlast(itself, voices, err); err != nil {
		return err
	}
	f.mu.Lock()
	f.expelled[node] = true
	f.mu.Unlock()
	return nil
}

// outlast returns nil when a node that is to be expelled serves no more: because it says so itself,
// or because its leases are over behind the promise of so many voters. others is why some of those
// did not promise.
func (f *Fabric) outlast(itself <-chan error, voices int, others error) error {
	var over <-chan time.Time
	if voices > f.record.voters()/2 {
		over = time.After(membership.ExpelWait(f.record.Lease))
	}
	for {
		select {
		case err := <-itself:
			if err == nil || errors.Is(err, rdma.ErrStale) {
				return err
			}
			if over == nil {
				return fmt.Errorf("only %d of %d nodes that have a voice answer: %w", voices, f.record.voters(),
					errors.Join(others, err))
			}
			itself = nil
		case <-over:
			return nil
		case <-f.cut:
			return rdma.ErrClosed
		}
	}
}

// CPU returns the processor time that the nodes' processes have used together, those apart that are
// gone.
func (f *Fabric) CPU() (sum time.Duration, err error) {
	err = f.each(f.living(), deadAfter, func(int) *message { return &message{Do: doInspect} }, func(_ int, r reply) {
		if r.Info != nil {
			sum += time.Duration(r.Info.Stats.CPUSeconds * float64(time.Second))
		}
	})
	return sum, err
}

// NodeDown reports whether a node serves no client any more, or this process does not reach it.
func (f *Fabric) NodeDown(node int) bool {
	return f.downs[node].Load() || f.links[node].verbs.up() != nil
}

// attached returns the processes that some node knows to be alive; nil when that cannot be told,
// since a node that serves does not answer: it may be the only one that reaches some process.
func (f *Fabric) attached() map[string]bool {
	names := map[string]bool{f.process: true}
	m, heard := &message{Do: doAttached, Pool: f.record.ID}, 0
	asked := f.living()
	_ = f.each(asked, deadAfter, func(int) *message { return m }, func(n int, r reply) {
		if n < f.record.Nodes {
			heard++
		}
		for _, name := range r.Attached {
			names[name] = true
		}
	})
	for n := range f.record.Nodes {
		if asked(n) {
			heard--
		}
	}
	if heard != 0 {
		return nil
	}
	return names
}

// living tells which nodes, witnesses too, may answer questions.
func (f *Fabric) living() func(node int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone := slices.Clone(f.expelled)
	return func(n int) bool { return n >= len(gone) || !gone[n] }
}

// MayExpel returns an error wrapping rdma.ErrUnreachable when too few nodes answer this process to
// expel another one: then it is this process that is cut off, as far as it can tell.
func (f *Fabric) MayExpel() error {
	m, voices := &message{Do: doAttached, Pool: f.record.ID}, 0
	err := f.each(f.living(), deadAfter/2, func(int) *message { return m }, func(n int, _ reply) {
		if n < f.record.voters() {
			voices++
		}
	})
	if voices <= f.record.voters()/2 {
		return fmt.Errorf("%d of %d nodes that have a voice answer: %w: %w", voices,
			f.record.voters(), rdma.ErrMinority, err)
	}
	return nil
}

// NodeGrace returns for how long a node must have failed verbs before it may be expelled: for a
// moment, unless its process is known to be gone.
func (f *Fabric) NodeGrace(node int) time.Duration {
	if f.downs[node].Load() || f.links[node].verbs.gone() {
		return 0
	}
	return deadAfter
}

// Clients lists the identities in use. A client is alive when a node knows its process to be; while
// none answers, all are.
func (f *Fabric) Clients() []rdma.Client {
	all, _ := f.ListClients()
	return all
}

// ListClients is Clients, or why the board does not tell.
func (f *Fabric) ListClients() ([]rdma.Client, error) {
	asked := realtime.Now()
	holders, err := f.board.Clients()
	if err != nil {
		return nil, fmt.Errorf("list the clients of %s: %w", f.name, err)
	}
	return f.clients(listing{holders, asked}), nil
}

// ListClients returns the clients as they were when the worker joined the view, of which it learned
// by the same question.
func (e *Endpoint) ListClients() ([]rdma.Client, error) {
	return e.fabric.clients(e.saw), nil
}

// listing is what the board said of identities, to a question that was asked at a time on realtime.Now.
type listing struct {
	holders []membership.Holder
	asked   time.Duration
}

// clients returns the identities listed, and which of them are alive. One node that knows a process
// makes it alive, and the nodes name those that they know with each list. Only all nodes together
// make one dead, and they are asked behind the list, since a process is attached before it claims
// an identity.
func (f *Fabric) clients(l listing) (all []rdma.Client) {
	names := f.heardSince(l.asked)
	if slices.ContainsFunc(l.holders, func(h membership.Holder) bool { return !names[h.Process] }) {
		names = f.attached()
	}
	for _, h := range l.holders {
		c := h.Client
		here := names == nil || names[h.Process]
		c.Held = here && !h.Closed
		c.Alive = c.Held && !h.Fenced
		all = append(all, c)
	}
	return all
}

// attendance is which processes a node has said to be alive, to a question that was asked at a time
// on realtime.Now.
type attendance struct {
	asked time.Duration
	names []string
}

// hear notes which processes a node said to be alive.
func (f *Fabric) hear(node int, a attendance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.asked > f.attended[node].asked {
		f.attended[node] = a
	}
}

// heardSince returns the processes that nodes have said to be alive to questions that were asked
// since then.
func (f *Fabric) heardSince(asked time.Duration) map[string]bool {
	names := map[string]bool{f.process: true}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.attended {
		if a.asked >= asked {
			for _, name := range a.names {
				names[name] = true
			}
		}
	}
	return names
}

// Forget frees the identity of a client that died, or was fenced off and closed, once nothing of it
// is left.
func (f *Fabric) Forget(c rdma.Client) error {
	return f.board.Forget(c, func(h membership.Holder) (bool, error) {
		names := f.attached()
		if names == nil {
			return false, fmt.Errorf("no node answers: %w", rdma.ErrNodeDown)
		}
		return names[h.Process], nil
	})
}
