package cm_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

const (
	lease = 400 * time.Microsecond
	calm  = 35 * time.Millisecond // from when all goes well, to the end
	hello = 9                     // the procedure by which clients call servers; the body is the term that they know
)

// world is a pool of servers and candidates, of which some die, and what is known of all of it.
type world struct {
	s           *sim.Sim
	r           *rand.Rand
	troubled    time.Duration // until when something goes wrong
	flaky       bool          // the registers' answers are lost now and then
	servers     []*server     // by node
	keepers     []*sim.Worker
	over        bool
	wrong       error
	lastID      int
	acked       []map[int]bool // by shard: writes that were acknowledged
	terms       map[uint64]string
	commits     int
	moved       int
	damaged     int // writes that a server has lost
	replication int
	failed      error // what keepers reported last
	events      []string
}

// server has a part of the writes. It does one thing at a time, which takes a while.
type server struct {
	*world
	node    int
	cm      *cm.Server
	c       *shards.Config       // that it adopted
	has     map[int]map[int]bool // by shard: writes
	copied  map[int]*copying     // by shard
	loads   map[int]*shards.Load // by shard
	counted time.Duration        // until when loads are counted
	doing   *operation           // nil: nothing is under way
	deaf    func(q []byte) bool  // whether a question of the manager is lost
	noted   uint64               // the last term, durably
	again   time.Duration        // when it is started anew; 0: it is not
	there   time.Duration        // when it has recovered; 0: it is not recovering
}

// copying is a copy of a shard that is under way.
type copying struct {
	from  int
	begun time.Duration
}

// operation is a write of a shard that is under way.
type operation struct {
	shard int
	c     *shards.Config
	until time.Duration
}

func (w *world) fail(format string, a ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf("at %v: %w", w.s.Now(), fmt.Errorf(format, a...))
	}
}

// newWorld makes a pool of so many nodes, of which the last are spares.
func newWorld(
	seed uint64, o sim.Options, troubled time.Duration, nodes, spares int, change ...func(*cm.Options),
) *world {
	o.Nodes = nodes
	w := &world{
		troubled: troubled,
		s:        sim.New(o), r: rand.New(rand.NewPCG(seed, 3)), terms: map[uint64]string{},
	}
	members := make([]int, nodes-spares)
	for i := range members {
		members[i] = i
	}
	first, err := shards.New(members, 2+w.r.IntN(3), 1+w.r.IntN(3))
	if err != nil {
		panic(err)
	}
	w.replication = first.Replication
	for range first.Shards {
		w.acked = append(w.acked, map[int]bool{})
	}
	for node := range nodes {
		v := &server{world: w, node: node, has: map[int]map[int]bool{}, copied: map[int]*copying{}}
		v.loads = map[int]*shards.Load{}
		w.servers = append(w.servers, v)
		w.s.GoAt(node, fmt.Sprint("server ", node), v.run)
	}
	spare := make([]int, spares)
	for i := range spare {
		spare[i] = nodes - spares + i
	}
	options := cm.Options{
		First: first, Spares: spare, Patience: lease / 4, Hung: 8 * time.Millisecond, Gather: -1,
		Period: time.Millisecond,
		Plan:   shards.PlanOptions{Pause: 1, Least: 1},
		Log:    func(c *shards.Config) { w.stored(c) },
	}
	if seed%4 == 2 {
		options.Gather = 3 * lease
	}
	for _, f := range change {
		f(&options)
	}
	for i := range 3 {
		w.keepers = append(w.keepers, w.s.Go(fmt.Sprint("candidate ", i), w.candidate(options)))
	}
	w.s.Go("client", w.client)
	w.s.Go("end", func(ep rdma.Endpoint) {
		ep.Sleep(troubled + calm)
		w.progressed()
		w.over = true
	})
	return w
}

// registers are those of a world. When they are flaky they do not answer now and then: then a swap
// was done, or is not, or will be.
type registers struct {
	*sim.Sim
	w *world
}

func (f *registers) fails() bool { return f.w.flaky && f.Now() < f.w.troubled && f.w.r.IntN(4) == 0 }

func (f *registers) Config() (rdma.Config, error) {
	if f.fails() {
		return rdma.Config{}, rdma.ErrUnreachable
	}
	return f.Sim.Config()
}

func (f *registers) SwapConfig(r rdma.Role, version uint64, data []byte) (bool, error) {
	if !f.fails() {
		return f.Sim.SwapConfig(r, version, data)
	}
	switch f.w.r.IntN(3) {
	case 0:
		_, _ = f.Sim.SwapConfig(r, version, data)
	case 1:
		late := time.Duration(f.w.r.IntN(5000)) * time.Microsecond
		f.Go("late", func(ep rdma.Endpoint) {
			ep.Sleep(late)
			_, _ = f.Sim.SwapConfig(r, version, data)
		})
	}
	return false, rdma.ErrUnreachable
}

// candidate keeps the pool until it ends. One that was fenced off begins again.
func (w *world) candidate(o cm.Options) func(rdma.Endpoint) {
	return func(ep rdma.Endpoint) {
		f := &registers{w.s, w}
		err := cluster.Keep(ep, f, cm.NewRecoverer(f, o), cluster.Options{
			Lease: lease, Stop: func() bool { return w.over },
			Log: func(e cluster.Event) {
				if e.What == cluster.Failed {
					w.failed = e.Err
				}
				w.events = append(w.events, e.String())
			},
		})
		switch {
		case errors.Is(err, rdma.ErrRevoked):
			w.s.Go("candidate again", w.candidate(o))
		case err != nil:
			w.fail("a candidate ends: %w", err)
		}
	}
}

// same sees that a term has one configuration.
func (w *world) same(c *shards.Config) {
	text := fmt.Sprintf("%v %+v", c.Members, c.Shards)
	if before, ok := w.terms[c.Term]; ok && before != text {
		w.fail("term %d is %s, and was %s", c.Term, text, before)
	}
	w.terms[c.Term] = text
}

// stored counts what a manager stored.
func (w *world) stored(c *shards.Config) {
	w.same(c)
	if c.Committed {
		w.commits++
	}
	for i := range c.Shards {
		if c.Shards[i].Source != shards.None {
			w.moved++
		}
	}
}

// client tells servers of terms that it reads.
func (w *world) client(ep rdma.Endpoint) {
	p, err := rpc.Open(ep, rpc.Options{})
	if err != nil {
		w.fail("client: %w", err)
		return
	}
	for i := 0; !w.over; i++ {
		ep.Sleep(time.Duration(w.r.IntN(300)) * time.Microsecond)
		if _, err := ep.Join(); err != nil {
			return
		}
		at, err := w.s.Config()
		if err != nil || at.Version == 0 {
			continue
		}
		c, err := shards.Decode(at.Data)
		if err != nil {
			w.fail("client: %w", err)
			return
		}
		to := c.Members[w.r.IntN(len(c.Members))].Node
		box := rdma.BoxAt(to, 1)
		if i%2 == 0 { // what a manager has no answer to
			box = rdma.BoxAt(to, rdma.OwnBoxes+int(w.keepers[2].Client()))
		}
		call, err := p.Start(box, hello, lease, binary.LittleEndian.AppendUint64(nil, c.Term))
		if err == nil && i%2 == 1 {
			_ = p.Wait(call)
		}
		if err == nil {
			call.Release()
		}
	}
}

// run is the server's control task.
func (v *server) run(ep rdma.Endpoint) {
	p, err := rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Node: v.node, Number: 1}})
	if err != nil {
		v.fail("server %d: %w", v.node, err)
		return
	}
	v.cm = cm.NewServer(ep, &registers{v.s, v.world}, v.node, v)
	for !v.over {
		v.restart(ep)
		r, err := p.Next(time.Duration(5+v.r.IntN(30)) * time.Microsecond)
		if err != nil && !errors.Is(err, rdma.ErrTimeout) {
			break
		}
		switch {
		case r == nil:
			err = nil
		case r.Proc == hello:
			v.cm.Told(binary.LittleEndian.Uint64(r.Body))
			err = r.Answer(0, nil)
		case v.s.Now() < v.troubled && v.r.IntN(10) == 0 || v.deaf != nil && v.deaf(r.Body):
			r.Drop() // it was lost
			err = nil
		default:
			err = v.cm.Handle(r)
		}
		err = errors.Join(err, v.cm.Step())
		usual := false
		for _, e := range []error{rdma.ErrStale, rdma.ErrClosed, rdma.ErrUnreachable, errNoted} {
			usual = usual || errors.Is(err, e)
		}
		if err != nil && !usual {
			v.fail("server %d: %w", v.node, err)
		}
		v.work()
	}
}

// restart starts the server anew when it is time, and ends its recovery. What it has of shards, and
// has noted, is durable.
func (v *server) restart(ep rdma.Endpoint) {
	now := v.s.Now()
	if v.again > 0 && now >= v.again {
		v.again, v.there = 0, now+time.Duration(1+v.r.IntN(3000))*time.Microsecond
		v.c, v.doing, v.copied = nil, nil, map[int]*copying{}
		v.damage()
		v.cm = cm.NewServer(ep, &registers{v.s, v.world}, v.node, v)
		v.cm.Restart(v.noted)
	}
	if v.there > 0 && now >= v.there {
		v.there = 0
		v.cm.Recovered()
	}
}

var errNoted = errors.New("the term was not noted")

// Adopt fails now and then, as memory may.
func (v *server) Adopt(c *shards.Config) error {
	if v.r.IntN(20) == 0 {
		return errNoted
	}
	if was := v.c; was != nil && (c.Term < was.Term || c.Term == was.Term && (was.Committed || !c.Committed)) {
		v.fail("server %d adopts term %d (committed: %v) behind %d (%v)", v.node, c.Term, c.Committed, was.Term,
			was.Committed)
	}
	if v.there > 0 || v.c == nil && v.noted > 0 && c.Term <= v.noted {
		v.fail("server %d adopts term %d, recovering: %v; it was in term %d", v.node, c.Term, v.there > 0, v.noted)
	}
	v.same(c)
	was := v.c
	if v.c = c; c.Member(v.node) != nil {
		v.noted = c.Term
	}
	for i := range c.Shards {
		s := &c.Shards[i]
		if s.Has(v.node) && v.has[i] == nil {
			v.has[i] = map[int]bool{}
		} else if !s.Has(v.node) {
			delete(v.has, i)
		} else if was != nil && slices.Contains(was.Shards[i].Complete(), v.node) &&
			!slices.Contains(s.Complete(), v.node) {
			v.has[i] = map[int]bool{} // it differed
		}
		from := s.Source // or the primary, of a copy
		if slices.Contains(s.Copying, v.node) {
			from = s.Primary
		} else if s.Primary != v.node {
			from = shards.None
		}
		switch was := v.copied[i]; {
		case from == shards.None:
			delete(v.copied, i)
		case was == nil || was.from != from:
			v.copied[i] = &copying{from, v.s.Now()}
		}
	}
	return nil
}

func (v *server) Quiet() bool { return v.doing == nil || v.doing.c.Term == v.c.Term }

// Report tells of copies that have had their time, in which all writes have gone to the copy, too.
func (v *server) Report() (r cm.Report) {
	now := v.s.Now()
	if v.c.Compare {
		return v.digests()
	}
	for _, i := range slices.Sorted(maps.Keys(v.copied)) {
		c := v.copied[i]
		if now-c.begun < 300*time.Microsecond || v.s.Dead(c.from) {
			continue
		}
		maps.Copy(v.has[i], v.servers[c.from].has[i])
		if s := &v.c.Shards[i]; s.Primary == v.node {
			r.Migrated = append(r.Migrated, i)
		} else {
			if source := s.Source; source != shards.None && !v.s.Dead(source) { // which the primary asks
				maps.Copy(v.has[i], v.servers[source].has[i])
			}
			r.Copied = append(r.Copied, i)
		}
	}
	for i := range v.c.Shards {
		if v.c.Shards[i].Primary != v.node || now > v.troubled {
			continue
		}
		l := v.loads[i]
		if l == nil {
			l = &shards.Load{}
			v.loads[i] = l
		}
		rate := uint64(1)
		if (i+int(now/(5*time.Millisecond)))%4 == 0 {
			rate = 3
		}
		l.Requests += rate * uint64(now-v.counted)
		l.Writes += rate * uint64(now-v.counted) / 10
		r.Loads = append(r.Loads, cm.Load{Shard: i, Load: *l})
	}
	v.counted = now
	return r
}

// digests tells what the server has of shards of which it is a complete replica.
func (v *server) digests() (r cm.Report) {
	for i := range v.c.Shards {
		if !slices.Contains(v.c.Shards[i].Complete(), v.node) {
			continue
		}
		d := shards.Digest{}
		for id := range v.has[i] {
			d.Sum, d.Versions = d.Sum+uint64(id*id), d.Versions+1
		}
		r.Digests = append(r.Digests, cm.Digest{Shard: i, Digest: d})
	}
	return r
}

// damage loses a write of each shard of which there are two other complete replicas, now and then,
// while the server is stopped.
func (v *server) damage() {
	at, err := v.s.Config()
	if err != nil || v.node != 0 && v.node != 1 {
		return
	}
	c, err := shards.Decode(at.Data)
	for i := range v.has {
		if err != nil || v.node != i%2 || len(c.Shards[i].Complete()) < 3 {
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(v.has[i])) {
			delete(v.has[i], id)
			v.damaged++
			break
		}
	}
}

// work goes on with what is under way, and begins something. Writes land on all replicas at once,
// at their end.
func (v *server) work() {
	v.check()
	now := v.s.Now()
	if o := v.doing; o != nil && now >= o.until {
		v.end(o)
		v.doing = nil
	}
	if v.c == nil || v.doing != nil || v.over {
		return
	}
	shard := v.r.IntN(len(v.c.Shards))
	if _, ok := v.cm.Serves(shard); ok {
		v.doing = &operation{shard, v.c, now + time.Duration(v.r.IntN(200))*time.Microsecond}
		v.check()
		v.read(shard)
	}
}

// end acknowledges a write, if all replicas live.
func (v *server) end(o *operation) {
	v.lastID++
	id, all := v.lastID, true
	for _, n := range o.c.Shards[o.shard].Replicas() {
		if has := v.servers[n].has[o.shard]; !v.s.Dead(n) && has != nil {
			has[id] = true
		} else if !v.s.Dead(n) { // it has not heard yet that it is one
			v.servers[n].has[o.shard] = map[int]bool{id: true}
		} else {
			all = false
		}
	}
	if all {
		v.acked[o.shard][id] = true
	}
}

// read sees all writes that were acknowledged: at the server, or at the source of a migration.
func (v *server) read(shard int) {
	seen := maps.Clone(v.has[shard])
	if source := v.c.Shards[shard].Source; source != shards.None {
		if v.s.Dead(source) {
			return // it waits
		}
		maps.Copy(seen, v.servers[source].has[shard])
	}
	for id := range v.acked[shard] {
		if !seen[id] {
			v.fail("shard %d at server %d in term %d (%+v): write %d was acknowledged, and is lost", shard, v.node,
				v.c.Term,
				v.c.Shards[shard], id)
			return
		}
	}
}

// check sees that one server at most serves each shard, or has something under way that it began.
func (w *world) check() {
	for shard := range w.acked {
		active := -1
		for n, v := range w.servers {
			if w.s.Dead(n) || v.cm == nil {
				continue
			}
			_, serves := v.cm.Serves(shard)
			if !serves && (v.doing == nil || v.doing.shard != shard) {
				continue
			}
			if active >= 0 {
				w.fail("servers %d and %d serve shard %d in terms %d and %d", active, n, shard,
					w.servers[active].c.Term, v.c.Term)
			}
			active = n
		}
	}
}

// progressed sees that all is well at the end, long after the last trouble.
func (w *world) progressed() {
	at, err := w.s.Config()
	if err != nil {
		w.fail("read the configuration: %w", err)
		return
	}
	c, err := shards.Decode(at.Data)
	if err != nil {
		w.fail("%w", err)
		return
	}
	if !c.Committed || c.Compare {
		w.fail("term %d is not committed, or compares; what failed last: %v", c.Term, w.failed)
	}
	for _, m := range c.Members {
		if w.s.Dead(m.Node) {
			w.fail("member %d is dead", m.Node)
		}
	}
	for i := range c.Shards {
		for _, n := range c.Shards[i].Complete() {
			for id := range w.acked[i] {
				if !w.servers[n].has[i][id] {
					w.fail("shard %d at server %d, in the end: write %d was acknowledged, and is lost", i, n, id)
				}
			}
		}
	}
	for n, m := range w.s.View().Members {
		if m.Replaces > 0 && !m.Gone && c.Member(n) == nil {
			w.fail("node %d %v, and its server is no member", n, m)
		}
	}
	for i := range c.Shards {
		s := &c.Shards[i]
		if s.Lost() {
			w.mayBeLost(i)
			continue
		}
		if term, ok := w.servers[s.Primary].cm.Serves(i); !ok || term != c.Term {
			w.fail("shard %d has a primary in term %d, and server %d serves: %v, in term %d", i, c.Term, s.Primary, ok,
				term)
		}
		if len(s.Copying) > 0 || s.Source != shards.None || 1+len(s.Backups) != min(c.Replication, len(c.Members)) {
			w.fail("shard %d is %+v in the end", i, *s)
		}
	}
}

// mayBeLost sees that no server that lives could be the primary of a lost shard, unless nothing was
// ever written.
func (w *world) mayBeLost(shard int) {
	if len(w.acked[shard]) == 0 {
		return
	}
	for n, v := range w.servers {
		if w.s.Dead(n) || v.has[shard] == nil {
			continue
		}
		w.fail("shard %d is lost, and server %d has %d of %d writes", shard, n, len(v.has[shard]), len(w.acked[shard]))
	}
}
