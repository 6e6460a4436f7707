package cm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
)

// Options parameterize a manager. Zero values mean defaults.
type Options struct {
	// First is the configuration that a pool without one begins with: see shards.New. Nil: the
	// manager waits for one.
	First *shards.Config
	// Spares are the nodes that may replace a dead one. Their servers become members then.
	Spares []int
	// Box is the number, at each node, of the mailbox in which the server's control task receives
	// requests; default 1.
	Box int
	// Patience is how long a tick waits for servers that do not answer; default 20 ms. It should be
	// longer than a server needs to become quiet, since silent servers are asked anew in the next
	// tick.
	Patience time.Duration
	// Hung is for how long a server may leave all questions unanswered before its node is expelled;
	// default 3 s. A server that says that it has ended is expelled at once.
	Hung time.Duration
	// Gather is for how long complete copies wait for others that are under way, so that one term
	// begins for all: nothing is served while a term begins. The default is 1 s; below 0 they do
	// not wait.
	Gather time.Duration
	// Period is for how long loads are counted before moves are planned; default 500 ms, as in the
	// paper. Plan parameterizes the plan.
	Period time.Duration
	Plan   shards.PlanOptions
	// Intact asserts that no memory is damaged. Replicas that differ are an error then, and not
	// copied anew. Tests use it to find faults of the program.
	Intact bool
	// Log is called with each configuration that was stored.
	Log func(*shards.Config)
}

func (o *Options) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&o.Patience, 20*time.Millisecond)
	o.Gather = cmp.Or(o.Gather, time.Second)
	set(&o.Hung, 3*time.Second)
	set(&o.Period, 500*time.Millisecond)
	if o.Box == 0 {
		o.Box = 1
	}
	if o.Log == nil {
		o.Log = func(*shards.Config) {}
	}
}

// window bounds how many servers are asked at a time, so that the manager's mailbox takes 512 KiB.
const window = 32

// NewRecoverer returns a function that makes the recoverer of each tenure of one candidate (see
// cluster.Keep): a Manager. All of them use one mailbox, the candidate's.
func NewRecoverer(f rdma.Configs, o Options) cluster.NewRecoverer {
	o.defaults()
	var peer *rpc.Peer
	return func(ep rdma.Endpoint) (cluster.Recoverer, error) {
		swap, ok := ep.(cluster.Configurer)
		if !ok {
			return nil, fmt.Errorf("manage the configuration on an endpoint of no master: %w", rdma.ErrNotSupported)
		}
		// Opened once: the mailbox survives the tenure.
		if peer == nil {
			box := rdma.BoxOptions{Node: rdma.All, Slots: 2 * window, Bytes: boxBytes}
			p, err := rpc.Open(ep, rpc.Options{Box: box, Window: window})
			if err != nil {
				return nil, fmt.Errorf("manage the configuration: %w", err)
			}
			peer = p
		}
		return &Manager{
			ep: ep, f: f, swap: swap, peer: peer, o: o,
			silent: map[int]silence{}, ended: map[int]string{}, plan: shards.NewPlanner(o.Plan), periodEnds: ep.Now() +
				o.Period,
		}, nil
	}
}

// Manager is the configuration manager in one tenure of a master. It belongs to the master's task.
//
// What it knows besides the registers is lost with the tenure: the next manager asks the members
// again. Only the registers decide.
type Manager struct {
	ep rdma.Endpoint
	// The registers: f reads, swap replaces.
	f    rdma.Configs
	swap cluster.Configurer
	peer *rpc.Peer
	o    Options

	// Version of the registers that c was read from, or stored as.
	version uint64
	// The configuration in the registers; nil: it must be read.
	c *shards.Config
	// A configuration of which the swap failed: it may have been stored behind that version, or may
	// still be; nil: none.
	pending *shards.Config
	// Why pending follows, for events.
	why string

	// Not all shards are served in the last term.
	waits bool
	// By node, servers that did not answer the last question.
	silent map[int]silence
	// By node, why its server has ended by itself, if it has said so.
	ended map[int]string
	plan  *shards.Planner
	// When the period ends in which loads are counted.
	periodEnds time.Duration
	// When complete copies are stored at the latest; 0: none wait.
	gathered time.Duration
	// By shard, the counts at the end of the last period.
	counted []sample

	// The term in which replicas are compared, and the digests that were reported in it.
	comparing uint64
	digests   map[shards.Replica]shards.Digest
}

// sample is what a server had counted of a shard.
type sample struct {
	// The node plus one; 0: there is no sample.
	node int
	shards.Load
}

// Spares implements cluster.Recoverer.
func (m *Manager) Spares() []int { return m.o.Spares }

// Mend implements cluster.Recoverer. It does nothing: Attend finds the nodes that are gone.
func (m *Manager) Mend(rdma.View) error { return nil }

// Restore implements cluster.Recoverer: it makes the spare's server a member. The copying is done
// under an idle view: see Attend.
//
// A crash behind the swap leaves a member that is no stand-in yet. Restore comes again then, and
// finds it a member.
func (m *Manager) Restore(_ rdma.View, _, spare int) error {
	if err := m.read(); err != nil {
		return err
	}
	if m.c == nil {
		return fmt.Errorf("have the server of node %d join: there is no configuration yet", spare)
	}
	if m.c.Member(spare) != nil {
		return nil
	}
	next, err := m.c.Join(spare)
	if err != nil {
		return err
	}
	return m.store(next, "new: "+servers([]int{spare}))
}

// Recover implements cluster.Recoverer. It does nothing: clients own nothing in the pool.
func (m *Manager) Recover(rdma.View, rdma.ClientID) error { return nil }

// Sweep implements cluster.Recoverer. It does nothing, for the same reason.
func (m *Manager) Sweep(rdma.View) error { return nil }

// Attend implements cluster.Attendant. It takes one step: it stores the configuration that follows
// the one in the registers, if one is due, and reports whether more may be. A crash leaves the one
// or the other.
//
// It commits a configuration when all members have answered that they know its term. Servers that
// were members before and are not any more are gone: nothing else removes a member.
//
// The order of the checks matters: gone members come first, since a term without them can be
// committed; restarted servers come before a commit, since their term must not be committed without
// what they have lost; and moves come last.
func (m *Manager) Attend(v rdma.View) (more bool, err error) {
	if err := m.read(); err != nil {
		return false, err
	}
	if m.c == nil {
		if m.o.First == nil {
			return false, nil
		}
		return true, m.store(m.o.First, "the first")
	}
	// A node that the view calls gone serves nothing, so its server may leave the members.
	if gone := m.gone(v); len(gone) > 0 {
		next, err := m.c.Fail(gone...)
		if err != nil {
			return false, err
		}
		return true, m.store(next, "gone: "+m.named(gone))
	}
	answers, err := m.ask(v.Epoch)
	if err != nil {
		return false, err
	}
	m.listen(answers)
	m.waits = !m.served(answers)
	if next, err := m.restarted(answers); err != nil || next != m.c {
		if err == nil {
			err = m.store(next, "servers began anew")
		}
		return err == nil, err
	}
	if !m.c.Committed {
		// A member that is silent for long is expelled, by Hung, and then gone.
		if !m.known(answers) {
			return false, nil
		}
		return true, m.store(m.c.Commit(), "")
	}
	if m.c.Compare {
		return m.compare(answers)
	}
	if more, err := m.repair(answers); more || err != nil {
		return more, err
	}
	if next := m.gather(m.reports(answers)); next != m.c {
		return true, m.store(next, "shards were copied")
	}
	if next := m.even(answers); next != m.c {
		return true, m.store(next, "shards move")
	}
	return false, nil
}

// Waits implements cluster.Attendant: it reports whether a member does not answer, or does not
// serve its shards in the last term yet.
func (m *Manager) Waits() bool { return m.waits }

// served reports whether all members have answered and serve the shards of which they are the
// primary. A server reports loads of exactly those, up to maxLoads.
func (m *Manager) served(answers []*answer) bool {
	if !m.c.Committed || m.c.Compare || slices.Contains(answers, nil) {
		return false
	}
	leads := map[int]int{}
	for _, s := range m.c.Shards {
		leads[s.Primary]++
	}
	for i, a := range answers {
		if len(a.Loads) < min(leads[m.c.Members[i].Node], maxLoads) {
			return false
		}
	}
	return true
}

// read reads the registers if their content is not known. In this tenure only the manager replaces
// it. If a swap has failed it is repeated first: it may still take effect, and the registers could
// be read too early. It follows the same version as before, so it takes effect once at most.
func (m *Manager) read() error {
	switch {
	case m.pending != nil:
		return m.store(m.pending, m.why)
	case m.c != nil:
		return nil
	}
	at, err := m.f.Config()
	if err != nil {
		return fmt.Errorf("manage the configuration: %w", err)
	}
	// Version 0 means that the registers are empty.
	m.version = at.Version
	if at.Version == 0 {
		return nil
	}
	if m.c, err = shards.Decode(at.Data); err != nil {
		return fmt.Errorf("manage the configuration: version %d: %w", at.Version, err)
	}
	return nil
}

// store replaces the configuration: by one that begins a term, for the reason why, or by a
// committed one. If it fails the swap may still take effect, until another swap is answered: see
// read. An error that wraps rdma.ErrStale says that the registers have another version: the tenure
// is over.
func (m *Manager) store(next *shards.Config, why string) error {
	m.c, m.pending, m.why = nil, next, why
	what := fmt.Sprintf("term %d begins: %s", next.Term, why)
	if next.Committed {
		what = fmt.Sprintf("term %d is committed", next.Term)
	}
	ok, err := m.swap.SwapConfig(m.version, next.Encode(), what)
	if err != nil {
		return fmt.Errorf("store the configuration of term %d: %w", next.Term, err)
	}
	// The swap was answered: whether or not it has replaced the configuration, it will not take
	// effect later.
	m.pending = nil
	if !ok {
		return fmt.Errorf("store the configuration of term %d: there is another: %w", next.Term, rdma.ErrStale)
	}
	m.c, m.version = next, m.version+1
	m.o.Log(next)
	return nil
}

// servers returns the names of servers for events.
func servers(nodes []int) string {
	var names []string
	for _, n := range nodes {
		names = append(names, fmt.Sprint("server ", n))
	}
	return strings.Join(names, ", ")
}

// named returns the names of servers that are gone, with why they have ended, if they have said so.
func (m *Manager) named(gone []int) string {
	names := servers(gone)
	for _, n := range gone {
		if why, ok := m.ended[n]; ok {
			names += fmt.Sprintf("; server %d ended: %s", n, why)
		}
	}
	return names
}

// gone returns the members of which the view calls the node gone.
func (m *Manager) gone(v rdma.View) (gone []int) {
	for _, member := range m.c.Members {
		if v.Gone(member.Node) {
			gone = append(gone, member.Node)
		}
	}
	return gone
}

// ask asks all members, window at a time, and returns their answers by member; nil: it has not
// answered within Patience.
func (m *Manager) ask(epoch uint64) ([]*answer, error) {
	m.dropRequests()
	answers := make([]*answer, len(m.c.Members))
	body := question{m.c.Term, epoch, m.c.Committed}.encode()
	for from := 0; from < len(answers); from += window {
		if err := m.askSome(answers, from, min(from+window, len(answers)), body); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// askSome asks the members from one place to another. Errors of single calls mean no answer; those
// of the manager's own endpoint are returned. The answers are copies, so the calls are released
// here, and their buffers with them.
func (m *Manager) askSome(answers []*answer, from, to int, body []byte) error {
	calls := make([]*rpc.Call, 0, to-from)
	defer func() {
		for _, c := range calls {
			c.Release()
		}
	}()
	for _, member := range m.c.Members[from:to] {
		c, err := m.peer.Start(rdma.BoxAt(member.Node, m.o.Box), Ask, m.o.Patience, body)
		if err != nil {
			return fmt.Errorf("ask server %d of term %d: %w", member.Node, m.c.Term, err)
		}
		calls = append(calls, c)
	}
	for i, c := range calls {
		err := m.peer.Wait(c)
		if errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrClosed) {
			return err
		}
		if err == nil {
			if answers[from+i], err = decodeAnswer(c.Body); err != nil {
				return fmt.Errorf("server %d: %w", m.c.Members[from+i].Node, err)
			}
		}
	}
	return nil
}

// dropRequests drops requests to the manager. It serves none, and they must not fill its mailbox.
func (m *Manager) dropRequests() {
	for {
		r, err := m.peer.Next(0)
		if r == nil || err != nil {
			return
		}
		r.Drop()
	}
}

// restarted returns the configuration with which the pool goes on after servers were restarted in
// memory that earlier ones left, which were members in the current term. It returns the current one
// if there are no such servers. In the new term all that was acknowledged is gathered. It waits for
// the answers of all members: a silent one is about to be gone, or to answer.
func (m *Manager) restarted(answers []*answer) (*shards.Config, error) {
	if slices.Contains(answers, nil) {
		return m.c, nil
	}
	present, due := make([]shards.Present, len(answers)), false
	for i, a := range answers {
		present[i] = shards.Present{Node: m.c.Members[i].Node, Term: a.term}
		due = due || a.restarted && a.term >= m.c.Term
	}
	if !due {
		return m.c, nil
	}
	return m.c.ColdStart(present)
}

// known reports whether all members serve in no earlier term. A restarted server that names this
// term serves in none; restarted handles it first. An answer may be of a higher term than the
// manager knows only if another manager has stored that: then the next swap fails.
func (m *Manager) known(answers []*answer) bool {
	for _, a := range answers {
		if a == nil || a.term < m.c.Term {
			return false
		}
	}
	return true
}

// reports returns the configuration that follows from what members report. Their reports are of
// this very term: it is committed, so each member knows it, and there is no higher one. Reports
// that do not apply any more are ignored.
func (m *Manager) reports(answers []*answer) *shards.Config {
	next := m.c
	for i, a := range answers {
		if a == nil {
			continue
		}
		node := m.c.Members[i].Node
		for _, shard := range a.Copied {
			if c, err := next.Complete(shard, node); err == nil { // or it is known
				next = c
			}
		}
		for _, shard := range a.Migrated {
			if c, err := next.Migrated(shard); err == nil {
				next = c
			}
		}
	}
	return next
}

// gather returns next, the configuration that follows from reports, when it is time to store it,
// and the current one until then. It is time when no copy or migration is left to wait for, or the
// oldest complete one has waited for Options.Gather.
func (m *Manager) gather(next *shards.Config) *shards.Config {
	now := m.ep.Now()
	if m.gathered == 0 {
		m.gathered = now + m.o.Gather
	}
	goesOn := func(s shards.Shard) bool { return len(s.Copying) > 0 || s.Source != shards.None }
	if next != m.c && now < m.gathered && slices.ContainsFunc(next.Shards, goesOn) {
		return m.c
	}
	m.gathered = 0
	return next
}

// even returns, at the end of a period, the configuration with moves that balance the loads. It
// returns the current one if there are none. If an answer is missing the period is extended.
func (m *Manager) even(answers []*answer) *shards.Config {
	if m.ep.Now() < m.periodEnds {
		return m.c
	}
	if slices.Contains(answers, nil) {
		return m.c // the period is longer
	}
	m.periodEnds = m.ep.Now() + m.o.Period
	next := m.c
	var full []int
	for i, a := range answers {
		if a.Full {
			full = append(full, m.c.Members[i].Node)
		}
	}
	for _, move := range m.plan.Plan(m.c, m.count(answers), full...) {
		c, err := next.Move(move)
		if err != nil {
			panic(fmt.Sprintf("cm: plan %+v in term %d: %v", move, m.c.Term, err))
		}
		next = c
	}
	return next
}

// count returns the loads of shards since the last period. The load is 0 for a shard with another
// primary since then, or with a primary that was restarted and counts anew.
func (m *Manager) count(answers []*answer) []shards.Load {
	loads := make([]shards.Load, len(m.c.Shards))
	counted := make([]sample, len(loads))
	for i, a := range answers {
		node := m.c.Members[i].Node
		for _, l := range a.Loads {
			if l.Shard >= len(loads) || m.c.Shards[l.Shard].Primary != node {
				continue
			}
			now := sample{node + 1, l.Load}
			counted[l.Shard] = now
			if l.Shard >= len(m.counted) || m.counted[l.Shard].node != now.node {
				continue
			}
			if was := m.counted[l.Shard]; was.Requests <= now.Requests && was.Writes <= now.Writes {
				loads[l.Shard] = shards.Load{Requests: now.Requests - was.Requests, Writes: now.Writes - was.Writes}
			}
		}
	}
	m.counted = counted
	return loads
}
