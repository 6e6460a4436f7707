package control

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// What masters and their candidates do goes over two ways. The registry decides: one
// compare-and-swap of a record, which takes effect or not, whatever becomes of the process. The
// nodes obey: a fence, a revocation or an expulsion is asked of each of them, and holds there from
// its answer on. Where both are needed the registry comes first. So a process that ends between the
// two leaves a record that says what the next master has to ask the nodes for once more. Each of
// these may be called again after an error.

// controlPatience bounds what a node may take for draining verbs: a fence waits there for the
// batches of frames that are being executed, procedures included, and for mailboxes' processes to
// part. It is above transport.DeadAfter, since a node that drains is not silent: it says on the way
// that it lives (memnode's conn.sendKeepalives).
const controlPatience = 5 * time.Second

// ReadView reads the registry's view, and learns from it which nodes are down. The error wraps
// rdma.ErrUnreachable when too few of those that keep the registry answer, and rdma.ErrClosed, too,
// once the fabric closes. It takes a round trip when a majority agrees, and holds no lock
// meanwhile.
func (ctl *Control) ReadView() (rdma.View, error) {
	v, down, err := ctl.registry.View()
	if err != nil {
		return rdma.View{}, err
	}
	ctl.learn(v, down)
	return v, nil
}

// sight is what one look has seen, for all workers that asked for it.
type sight struct {
	done    chan struct{} // closed behind the look
	view    rdma.View
	clients listing
	err     error
}

// look is ReadView, and the identities in use, of which it knows that too: see
// membership.Registry.Look. One look serves all workers that have come before it began. So while
// all of a process wait for an epoch, which each asks for again and again, they cost one question
// at a time. A worker waits for two of them at most: the one under way, and its own. The listing
// is shared: callers do not change it.
func (ctl *Control) look() (rdma.View, listing, error) {
	ctl.mu.Lock()
	s, first := ctl.next, ctl.next == nil
	if first {
		s = &sight{done: make(chan struct{})}
		ctl.next = s
	}
	ctl.mu.Unlock()
	if first {
		ctl.lookFor(s)
	}
	<-s.done
	v := s.view
	v.Members = slices.Clone(v.Members)
	return v, s.clients, s.err
}

// lookFor makes the look of which s is the outcome, behind the one that is under way.
func (ctl *Control) lookFor(s *sight) {
	defer close(s.done)
	ctl.looking.Lock()
	defer ctl.looking.Unlock()
	ctl.mu.Lock()
	ctl.next = nil // what comes from here on may come behind the question
	ctl.mu.Unlock()
	if s.err = rdma.ErrClosed; !ctl.closing.Load() { // the registry may have ended with the pool
		s.view, s.clients, s.err = ctl.lookNow()
	}
}

// lookNow puts the question. The time is read before it is asked: which processes nodes name in
// their answers counts for the list.
func (ctl *Control) lookNow() (rdma.View, listing, error) {
	asked := realtime.Now()
	v, down, holders, err := ctl.registry.Look()
	if err != nil {
		return rdma.View{}, listing{}, err
	}
	ctl.learn(v, down)
	return v, listing{holders, asked}, nil
}

// learn notes a view, and which nodes are down. Views may arrive out of order, since several
// workers read at a time: an older one replaces nothing. What is known of nodes only grows. A node
// that is Gone from the view was expelled to the end before the view said so; one that is down may
// hold a lease yet. It keeps a copy of the members, since v is its caller's.
func (ctl *Control) learn(v rdma.View, down []bool) {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	for n, m := range v.Members {
		if m.Gone {
			ctl.expelled[n] = true
		}
		if m.Gone || down[n] {
			ctl.downs[n].Store(true) // for good: no node comes back
		}
	}
	if v.Epoch >= ctl.last.Epoch {
		ctl.last = v
		ctl.last.Members = slices.Clone(v.Members)
	}
}

// Down returns the error of a node that was expelled, and so serves no client any more; nil for
// others. It asks nothing: the node may be marked already on the registry, and this process not
// have read it.
func (ctl *Control) Down(node int) error {
	if ctl.downs[node].Load() {
		return fmt.Errorf("node %d was expelled: %w", node, rdma.ErrNodeDown)
	}
	return nil
}

// View returns the pool's view; while the registry is out of reach, that which was seen last. The
// view that was seen last may be behind. A worker that acts on it finds its verbs refused, if an
// epoch was fenced since.
func (ctl *Control) View() rdma.View {
	v, err := ctl.ReadView()
	if err == nil {
		return v
	}
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	v = ctl.last
	v.Members = slices.Clone(v.Members)
	return v
}

// Advance replaces the view's state. An error that wraps rdma.ErrUnreachable leaves open whether it
// did: whatever the view is then, a later Advance decides on that.
func (ctl *Control) Advance(from, to rdma.State) (bool, error) { return ctl.registry.Advance(from, to) }

// SetMember replaces one node's state in the view. It acts in the given busy epoch only, and an
// error leaves open whether it did, as Advance's.
func (ctl *Control) SetMember(epoch uint64, node int, from, to rdma.Member) (bool, error) {
	return ctl.registry.SetMember(epoch, node, from, to)
}

// TryMaster makes owner the pool's master if there is none. It revokes the life of the last owner
// first, where there is one: that asks all nodes that serve, and takes up to controlPatience when
// one of them does not answer. After an error the tenure may have begun: the next call for the same
// owner finds it.
func (ctl *Control) TryMaster(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
	return ctl.registry.TryMaster(owner, lease)
}

// Renew prolongs a tenure. The owner counts from before it asked. After an error the tenure lasts
// until r.Until at least.
func (ctl *Control) Renew(r rdma.Role, lease time.Duration) (rdma.Role, bool, error) {
	return ctl.registry.Renew(r, lease)
}

// Resign ends a tenure early. Where the registry cannot be reached it runs out by itself.
func (ctl *Control) Resign(r rdma.Role) { ctl.registry.Resign(r) }

// Config returns the store's configuration. It is of the registry, too: one record, as old or new
// as a compare-and-swap left it.
func (ctl *Control) Config() (rdma.Config, error) { return ctl.registry.Config() }

// SwapConfig replaces the store's configuration, for the master of tenure r only. The error wraps
// rdma.ErrStale once a later tenure has begun, or is about to.
func (ctl *Control) SwapConfig(r rdma.Role, version uint64, data []byte) (bool, error) {
	return ctl.registry.SwapConfig(r, version, data)
}

// AwaitConfig waits for another configuration of the store than that version. The error wraps
// rdma.ErrTimeout, or rdma.ErrClosed once the fabric closes.
func (ctl *Control) AwaitConfig(version uint64, within time.Duration) (rdma.Config, error) {
	return ctl.registry.AwaitConfig(version, within)
}

// Master returns the pool's master, and for how long yet at most it is that. It returns false if
// there is no master, or the registry is out of reach.
func (ctl *Control) Master() (rdma.Role, time.Duration, bool) {
	r, left, ok, err := ctl.registry.Master()
	return r, left, ok && err == nil
}

// serving reports whether a memory node may still execute verbs, as far as this process knows. A
// node that is only marked as down counts as one that does, until the wait for its leases is over.
func (ctl *Control) serving(node int) bool {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	return node < ctl.record.Nodes && !ctl.expelled[node]
}

// Fence makes every worker join the epoch before its next verb. Each node that was not expelled has
// to answer: the error wraps rdma.ErrNodeDown when one does not. Each of them may have verbs in its
// queues that were posted in an earlier epoch, so that a majority is not enough. Witnesses execute
// none. It may be called again after an error: nodes that have the fence drain once more. A crash
// in the midst leaves some nodes with the fence: workers find their verbs refused there, and join
// the epoch, which is in the view before it is fenced.
func (ctl *Control) Fence(epoch uint64) error {
	m := &Message{Do: DoFence, Pool: ctl.record.ID, Epoch: epoch}
	if err := ctl.each(ctl.serving, controlPatience, func(int) *Message { return m }, nil); err != nil {
		return fmt.Errorf("fence epoch %d: %w", epoch, err)
	}
	return nil
}

// Revoke fences a client off. The holder may change meanwhile: the life that was listed is the one
// that is fenced off. An identity that is free needs none.
func (ctl *Control) Revoke(c rdma.ClientID) error {
	if c < 1 || int(c) > ctl.record.Clients {
		return fmt.Errorf("revoke client %d: pool has clients 1 to %d: %w", c, ctl.record.Clients, rdma.ErrAccess)
	}
	all, err := ctl.registry.Clients()
	if err != nil {
		return fmt.Errorf("revoke client %d: %w", c, err)
	}
	for _, h := range all {
		if h.ID == c {
			return ctl.RevokeLife(h.Client)
		}
	}
	return nil
}

// RevokeLife fences off the holder that Clients described. It marks the holder as fenced on the
// registry first. So a process that finds the client dead, and the client itself, learn of it even
// if this process ends before the nodes are told. A crash behind the mark leaves nodes that still
// execute its verbs. The identity is not handed out before Forget, and a process that finds the
// mark may tell the nodes again.
func (ctl *Control) RevokeLife(c rdma.Client) error {
	err := ctl.registry.MarkFenced(c)
	if err == nil {
		m := &Message{Do: DoRevoke, Pool: ctl.record.ID, Client: c.ID, Life: c.Life}
		err = ctl.each(ctl.serving, controlPatience, func(int) *Message { return m }, nil)
	}
	if err != nil {
		return fmt.Errorf("revoke client %d: %w", c.ID, err)
	}
	return nil
}

// Expel makes a node one that is down for all processes. The registry records it first, so that no
// other master thinks otherwise. A node that answers stops serving at once. From one that does not
// answer, a majority takes the right to serve: when the leases that it may have are over it answers
// no client any more, dead or alive.
func (ctl *Control) Expel(epoch uint64, node int) error {
	if err := ctl.expel(epoch, node); err != nil {
		return fmt.Errorf("expel node %d in epoch %d: %w", node, epoch, err)
	}
	return nil
}

// The steps are: the mark on the registry; the promises of the nodes, and the node's own word,
// asked for at the same time; then the wait. A crash behind the mark leaves a node that may still
// serve processes that have not read the mark: the next master takes all steps again. Promises are
// never taken back, so that those that were made still hold.
func (ctl *Control) expel(epoch uint64, node int) error {
	// The mark is refused unless the view is busy in that epoch: a master that was slow takes no
	// node away that its successor found well.
	if err := ctl.registry.SetDown(epoch, node); err != nil {
		return err
	}
	// Verbs of this process fail from here on. A fence still needs the node's answer: its leases
	// may last.
	ctl.downs[node].Store(true)
	m := &Message{Do: DoExpel, Pool: ctl.record.ID, Epoch: epoch, Node: node}
	// It holds one, so that the goroutine ends when the answer is not waited for any more.
	itself := make(chan error, 1)
	if !ctl.tasks.Begin("expel") {
		return rdma.ErrClosed
	}
	go func() {
		defer ctl.tasks.End("expel")
		_, err := ctl.links[node].ask(m, transport.DeadAfter)
		itself <- err
	}()
	promised := 0
	living := ctl.living()
	others := func(n int) bool { return n != node && living(n) }
	err := ctl.each(others, transport.DeadAfter, func(int) *Message { return m }, func(n int, _ Reply) {
		if n < ctl.record.Voters() {
			promised++
		}
	})
	// A later epoch was fenced there: this process is not the master any more.
	if errors.Is(err, rdma.ErrStale) {
		return err
	}
	if err := ctl.outlast(itself, promised, err); err != nil {
		return err
	}
	ctl.mu.Lock()
	// From here on its fences and revocations need no answer of the node.
	ctl.expelled[node] = true
	ctl.mu.Unlock()
	return nil
}

// outlast returns nil when a node that is to be expelled serves no more: because it says so itself,
// or because its leases are over behind the promise of so many voters. others is why some of those
// did not promise. The wait begins behind the last promise that counts: what a node granted before
// it promised was asked for earlier still. See package membership.
func (ctl *Control) outlast(itself <-chan error, promised int, others error) error {
	var over <-chan time.Time
	if promised > ctl.record.Voters()/2 {
		over = time.After(membership.ExpelWait(ctl.record.Lease))
	}
	for {
		select {
		case err := <-itself:
			if err == nil || errors.Is(err, rdma.ErrStale) {
				return err
			}
			if over == nil {
				return fmt.Errorf("only %d of %d voters answer: %w", promised, ctl.record.Voters(),
					errors.Join(others, err))
			}
			itself = nil
		case <-over:
			return nil
		case <-ctl.cut:
			return rdma.ErrClosed
		}
	}
}

// CPU returns the processor time that the nodes' processes have used together, those apart that are
// gone. With an error it is that of the nodes that answered.
func (ctl *Control) CPU() (sum time.Duration, err error) {
	err = ctl.each(ctl.living(), transport.DeadAfter, func(int) *Message { return &Message{Do: DoInspect} },
		func(_ int, r Reply) {
			if r.Info != nil {
				sum += time.Duration(r.Info.Stats.CPUSeconds * float64(time.Second))
			}
		})
	return sum, err
}

// NodeDown reports whether a node serves no client any more, or this process does not reach it.
func (ctl *Control) NodeDown(node int) bool {
	return ctl.downs[node].Load() || ctl.links[node].verbs.Up() != nil
}

// attached returns the processes that some node knows to be alive; nil when that cannot be told,
// since a node that serves does not answer: it may be the only one that reaches some process. It
// asks all nodes anew. Witnesses are asked as well, but not missed. This process is always among
// them.
func (ctl *Control) attached() map[string]bool {
	names := map[string]bool{ctl.process: true}
	m, heard := &Message{Do: DoAttached, Pool: ctl.record.ID}, 0
	asked := ctl.living()
	_ = ctl.each(asked, transport.DeadAfter, func(int) *Message { return m }, func(n int, r Reply) {
		if n < ctl.record.Nodes {
			heard++
		}
		for _, name := range r.Attached {
			names[name] = true
		}
	})
	for n := range ctl.record.Nodes {
		if asked(n) {
			heard--
		}
	}
	if heard != 0 {
		return nil
	}
	return names
}

// living tells which nodes, witnesses too, may answer questions: all but those that were expelled
// to the end by now. What it returns does not change: attached counts the answers of the very nodes
// that it asked.
func (ctl *Control) living() func(node int) bool {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	gone := slices.Clone(ctl.expelled)
	return func(n int) bool { return n >= len(gone) || !gone[n] }
}

// MayExpel returns an error wrapping rdma.ErrUnreachable when too few nodes answer this process to
// expel another one: then it is this process that is cut off, as far as it can tell. It spares a
// process that is cut off an attempt that would fail behind the mark. It promises nothing: what it
// finds may be otherwise when the node is expelled.
func (ctl *Control) MayExpel() error {
	m, up := &Message{Do: DoAttached, Pool: ctl.record.ID}, 0
	err := ctl.each(ctl.living(), transport.DeadAfter/2, func(int) *Message { return m }, func(n int, _ Reply) {
		if n < ctl.record.Voters() {
			up++
		}
	})
	if up <= ctl.record.Voters()/2 {
		return fmt.Errorf("%d of %d voters answer: %w: %w", up, ctl.record.Voters(), rdma.ErrMinority, err)
	}
	return nil
}

// NodeGrace returns for how long a node must have failed verbs before it may be expelled: for a
// moment, unless its process is known to be gone. A connection that broke is made again within that
// time where the node is well.
func (ctl *Control) NodeGrace(node int) time.Duration {
	if ctl.downs[node].Load() || ctl.links[node].verbs.Gone() {
		return 0
	}
	return transport.DeadAfter
}

// Clients lists the identities in use. A client is alive when a node knows its process to be; while
// none answers, all are.
func (ctl *Control) Clients() []rdma.Client {
	all, _ := ctl.ListClients()
	return all
}

// ListClients is Clients, or why the registry does not tell.
func (ctl *Control) ListClients() ([]rdma.Client, error) {
	asked := realtime.Now()
	holders, err := ctl.registry.Clients()
	if err != nil {
		return nil, fmt.Errorf("list the clients of %s: %w", ctl.name, err)
	}
	return ctl.clients(listing{holders, asked}), nil
}

// ListClients returns the clients as they were when the worker joined the view, of which it learned
// by the same question.
func (w *Worker) ListClients() ([]rdma.Client, error) {
	return w.pool.clients(w.saw), nil
}

// listing is what the registry said of identities, to a question that was asked at a time on
// realtime.Now.
type listing struct {
	holders []membership.Holder
	asked   time.Duration
}

// clients returns the identities listed, and which of them are alive. One node that knows a process
// makes it alive, and the nodes name those that they know with each list. Only all nodes together
// make one dead, and they are asked behind the list, since a process is attached before it claims
// an identity. A client that was fenced off is not alive, but held while its process is there and
// has not closed it. When the nodes cannot tell, each process counts as alive: a client that lives
// must never be recovered.
func (ctl *Control) clients(l listing) (all []rdma.Client) {
	names := ctl.heardSince(l.asked)
	if slices.ContainsFunc(l.holders, func(h membership.Holder) bool { return !names[h.Process] }) {
		names = ctl.attached()
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

// hear notes which processes a node said to be alive. Answers may arrive out of order: an older one
// is not taken. The names are kept for the next list: they are not changed any more.
func (ctl *Control) hear(node int, a attendance) {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if a.asked > ctl.attended[node].asked {
		ctl.attended[node] = a
	}
}

// heardSince returns the processes that nodes have said to be alive to questions that were asked
// since then. A name in an earlier answer proves nothing: that process may have left before the
// list was read.
func (ctl *Control) heardSince(asked time.Duration) map[string]bool {
	names := map[string]bool{ctl.process: true}
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	for _, a := range ctl.attended {
		if a.asked >= asked {
			for _, name := range a.names {
				names[name] = true
			}
		}
	}
	return names
}

// Forget frees the identity of a client that died, or was fenced off and closed, once nothing of it
// is left. The error wraps rdma.ErrHeld while its process lives, and rdma.ErrNodeDown while that
// cannot be told. Which processes are alive is asked behind the read of the identity's record,
// whose process was attached before it claimed it. If the record changes meanwhile, the registry
// reads it, and asks, again.
func (ctl *Control) Forget(c rdma.Client) error {
	return ctl.registry.Forget(c, func(h membership.Holder) (bool, error) {
		names := ctl.attached()
		if names == nil {
			return false, fmt.Errorf("no node answers: %w", rdma.ErrNodeDown)
		}
		return names[h.Process], nil
	})
}
