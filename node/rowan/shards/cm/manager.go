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

// Options shape a manager. Zero values mean defaults.
type Options struct {
	// First is the configuration of a pool that has none: see shards.New.
	First *shards.Config
	// Spares are the nodes that may take a dead one's place. Their servers become members then.
	Spares []int
	// Box is the number of the mailbox in which each server's control task gets requests, at its node.
	// Default 1.
	Box int
	// Patience is how long a tick waits for servers that do not answer; default 20 ms. They are asked
	// again in the next one, so that it is to be longer than a server takes to become quiet.
	Patience time.Duration
	// Hung is for how long a server leaves all questions unanswered before its node is expelled;
	// default 3 s. One that says that it has ended is not waited for.
	Hung time.Duration
	// Gather is for how long copies that are complete wait for others that go on, so that they are
	// stored in one term: nothing is served while a term begins. Default 1 s; less than 0: they do not
	// wait.
	Gather time.Duration
	// Period is for how long loads are counted; default 500 ms, as in the paper. Plan is what is done
	// then.
	Period time.Duration
	Plan   shards.PlanOptions
	// Intact: no memory is damaged, as where faults of this program are looked for. Then replicas that
	// differ behind a cold start are an error, and not copied anew.
	Intact bool
	// Log is told of each configuration that was stored.
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

// window bounds the servers that are asked at a time, so that the manager's mailbox takes 512 KiB.
const window = 32

// NewMender returns what makes the mender of each tenure of one candidate (see cluster.Keep): a
// manager. All use one mailbox, the candidate's.
func NewMender(f rdma.Configs, o Options) cluster.NewMender {
	o.defaults()
	var peer *rpc.Peer
	return func(ep rdma.Endpoint) (cluster.Mender, error) {
		swap, ok := ep.(cluster.Configurer)
		if !ok {
			return nil, fmt.Errorf("manage the configuration on an endpoint of no master: %w", rdma.ErrNotSupported)
		}
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

// Manager is the manager in one tenure of a master.
type Manager struct {
	ep   rdma.Endpoint
	f    rdma.Configs
	swap cluster.Configurer
	peer *rpc.Peer
	o    Options

	version uint64         // in the registers
	c       *shards.Config // nil: it is to be read
	pending *shards.Config // may have been stored behind that version, or may be yet; nil: none
	why     string         // why pending follows

	waits      bool            // not all shards are served in the last term
	silent     map[int]silence // by node, of servers that did not answer the last question
	ended      map[int]string  // by node, why its server has ended, if it has said so
	plan       *shards.Planner
	periodEnds time.Duration
	gathered   time.Duration // when what is complete is stored at the latest; 0: nothing waits
	counted    []sample      // by shard, at the end of the last period

	comparing uint64                           // the term in which replicas are compared
	digests   map[shards.Replica]shards.Digest // that were told in it
}

// sample is what a server had counted of a shard.
type sample struct {
	node int // plus one; 0: there is none
	shards.Load
}

// Spares implements cluster.Mender.
func (m *Manager) Spares() []int { return m.o.Spares }

// Mend has nothing to do: Attend sees which nodes are gone.
func (m *Manager) Mend(rdma.View) error { return nil }

// Restore makes the spare's server a member. It copies under an idle view: see Attend.
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

// Recover has nothing to do: clients own nothing.
func (m *Manager) Recover(rdma.View, rdma.ClientID) error { return nil }

// Sweep has nothing to do.
func (m *Manager) Sweep(rdma.View) error { return nil }

// Attend takes one step: it stores the configuration that follows the one in the registers, if one
// is due. A crash leaves the one or the other.
//
// It commits when all members have answered that they know the term. Those that were members before
// are gone: only they are left out.
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
// serve yet in the last term.
func (m *Manager) Waits() bool { return m.waits }

// served reports whether all members have answered, and serve the shards of which they are the
// primaries.
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

// read reads the registers, unless it is known what they have: others replace nothing in this
// tenure. What may be stored yet is stored first, or it could be read too early: it follows from
// the same version as ever.
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
	m.version = at.Version
	if at.Version == 0 {
		return nil
	}
	if m.c, err = shards.Decode(at.Data); err != nil {
		return fmt.Errorf("manage the configuration: version %d: %w", at.Version, err)
	}
	return nil
}

// store replaces the configuration by one that begins a term, and why, or commits one. Where that
// fails it may happen yet, until another swap is answered: see read.
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
	m.pending = nil
	if !ok {
		return fmt.Errorf("store the configuration of term %d: there is another: %w", next.Term, rdma.ErrStale)
	}
	m.c, m.version = next, m.version+1
	m.o.Log(next)
	return nil
}

// servers names some.
func servers(nodes []int) string {
	var names []string
	for _, n := range nodes {
		names = append(names, fmt.Sprint("server ", n))
	}
	return strings.Join(names, ", ")
}

// named names servers that are gone, and says why they have ended, as far as they have said so.
func (m *Manager) named(gone []int) string {
	names := servers(gone)
	for _, n := range gone {
		if why, ok := m.ended[n]; ok {
			names += fmt.Sprintf("; server %d ended: %s", n, why)
		}
	}
	return names
}

// gone returns the members whose nodes are gone.
func (m *Manager) gone(v rdma.View) (gone []int) {
	for _, member := range m.c.Members {
		if n := member.Node; n < len(v.Members) && v.Members[n].Gone {
			gone = append(gone, n)
		}
	}
	return gone
}

// ask asks all members, and returns what they answered, by member; nil: nothing yet.
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

// dropRequests drops what came to the manager: it answers nothing, and its mailbox is to stay
// empty.
func (m *Manager) dropRequests() {
	for {
		r, err := m.peer.Next(0)
		if r == nil || err != nil {
			return
		}
		r.Drop()
	}
}

// restarted returns the configuration by which servers go on that were started anew, in memory that
// earlier ones have left, and were members in the term of now. In it all that was acknowledged is
// gathered. It takes the answers of all members: one that does not answer is about to be gone, or
// to come.
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

// known reports whether all members serve in no earlier term. One that was started anew and names
// this term serves in none: restarted sees to it first.
func (m *Manager) known(answers []*answer) bool {
	for _, a := range answers {
		if a == nil || a.term < m.c.Term {
			return false
		}
	}
	return true
}

// reports returns the configuration that follows from what members report. It is of this very term:
// each of them knows the term, since it is committed, and there is no higher one.
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

// gather returns the configuration that follows from reports when that is to be stored, and until
// then the one that there is.
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

// even returns, at the end of a period, the configuration with moves that even loads out.
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

// count returns what shards were counted to meet since the last period. A shard that has another
// primary since then, or one that began to count anew, met nothing.
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
