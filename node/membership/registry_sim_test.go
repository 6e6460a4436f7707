package membership

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership/history"
	"github.com/farkv/farkv/node/rdma"
)

const masterLease = 20 * time.Millisecond

// farStore is a Store that takes time, and loses requests and answers; a request may also come much
// later.
type farStore struct {
	Store
	w    *world
	lost float64
	fast bool // it takes hardly any time, so that most waits are for leases
}

// most is the longest that a way takes.
func (s *farStore) most() time.Duration {
	if s.fast {
		return 10 * time.Microsecond
	}
	return 2 * time.Millisecond
}

var errNoAnswer = fmt.Errorf("no answer: %w", ErrUnreachable)

func (s *farStore) way() { s.w.current.sleep(s.w.between(0, s.most())) }

func (s *farStore) Load(key string) ([]byte, uint64, error) {
	s.way()
	value, version, err := s.Store.Load(key)
	s.way()
	if s.w.chance(s.lost) {
		return nil, 0, errNoAnswer
	}
	return value, version, err
}

func (s *farStore) Swap(key string, version uint64, value []byte) (bool, error) {
	s.way()
	if s.w.chance(s.lost) {
		if s.w.chance(0.5) {
			s.w.after(s.w.between(0, 50*time.Millisecond), func() { s.Store.Swap(key, version, value) })
		}
		return false, errNoAnswer
	}
	ok, err := s.Store.Swap(key, version, value)
	s.way()
	if s.w.chance(s.lost) {
		return false, errNoAnswer
	}
	return ok, err
}

func (s *farStore) Look(key, prefix string) (Record, []Record, error) {
	s.way()
	first, all, err := s.Store.Look(key, prefix)
	s.way()
	if s.w.chance(s.lost) {
		return Record{}, nil, errNoAnswer
	}
	return first, all, err
}

// witness is a Store that looks at each master's record as it is replaced: no other owner follows
// one that has not ended its tenure itself, and was not fenced off.
type witness struct {
	Store
	c *poolModel
}

func (s *witness) Swap(key string, version uint64, value []byte) (bool, error) {
	before, _, _ := s.Store.Load(key)
	ok, err := s.Store.Swap(key, version, value)
	o := &Options{Clients: s.c.clients}
	if key == configKey && ok {
		s.config(before, value, o)
	}
	if key != masterKey || !ok || len(before) == 0 {
		return ok, err
	}
	last, damaged := decode[masterRecord](key, before, o)
	next, worse := decode[masterRecord](key, value, o)
	l := life{last.Owner, last.Life}
	switch {
	case damaged != nil || worse != nil:
		s.c.breach("%v, %v", damaged, worse)
	case next.Owner != 0 && next.Epoch != last.Epoch+1 && next.Epoch != last.Epoch:
		s.c.breach("a tenure in epoch %d follows one in epoch %d", next.Epoch, last.Epoch)
	case last.Owner != 0 && next.Owner != 0 && (life{next.Owner, next.Life}) != l && !s.c.fenced[l]:
		s.c.breach("%+v follows %+v, which was not fenced off", next, last)
	}
	return ok, err
}

// config looks at a configuration as it is replaced: no master does that once a later one knows of
// its tenure.
func (s *witness) config(before, value []byte, o *Options) {
	var last configRecord
	err := error(nil)
	if len(before) > 0 {
		last, err = decode[configRecord](configKey, before, o)
	}
	next, worse := decode[configRecord](configKey, value, o)
	claimed := next.Version == last.Version && next.Tenure > last.Tenure && string(next.Data) == string(last.Data)
	swapped := next.Version == last.Version+1 && next.Tenure >= last.Tenure
	switch {
	case err != nil || worse != nil:
		s.c.breach("%v, %v", err, worse)
	case !claimed && !swapped:
		s.c.breach("configuration %+v follows %+v", next, last)
	case swapped && next.Tenure < s.c.begun:
		s.c.breach("the master of epoch %d replaces the configuration, and that of epoch %d has begun", next.Tenure,
			s.c.begun)
	case swapped:
		s.c.configs++
	}
}

// life is one holder of an identity.
type life struct {
	id   rdma.ClientID
	life uint64
}

// reign is a tenure as its owner knew of it, in real time.
type reign struct {
	life
	of         *process
	epoch      uint64
	begin, end time.Duration
}

// poolModel is the processes of a pool, what they did, and what was wrong with it.
type poolModel struct {
	*world
	store      *farStore
	registries []*process
	clients    int
	holds      map[rdma.ClientID]life // identities that a worker has, or died with
	lives      map[rdma.ClientID]uint64
	fenced     map[life]bool
	reigns     []*reign
	won        map[uint64]bool // epochs of the view
	begun      uint64          // the last tenure that its owner knows of
	configs    int             // that were replaced
	log        *history.Log    // of the configuration
	flying     map[string]func()
	down       [3]bool
	broken     []string
}

type process struct {
	*Registry
	*clock
	c    *poolModel
	name string
	dead bool
	left int // workers
}

func (c *poolModel) breach(format string, a ...any) {
	c.broken = append(c.broken, fmt.Sprintf("at %v: ", c.now)+fmt.Sprintf(format, a...))
}

func (c *poolModel) process(name string) *process {
	p := &process{clock: c.clock(), c: c, name: name}
	p.Registry = New(c.store, Options{Nodes: 3, Clients: c.clients, Process: name, Now: p.now, Revoke: p.revoke})
	p.next = c.IntN(c.clients) // the run's own chance
	c.registries = append(c.registries, p)
	return p
}

func (p *process) revoke(c rdma.Client) error {
	if err := p.MarkFenced(c); err != nil {
		return err
	}
	p.c.current.sleep(p.c.between(0, p.c.store.most()))
	if p.c.chance(p.c.store.lost) {
		return rdma.ErrTimeout
	}
	p.c.fenced[life{c.ID, c.Life}] = true
	return nil
}

// check accepts what a store that does not answer makes of a call.
func (c *poolModel) check(err error, allowed ...error) bool {
	for _, a := range append(allowed, ErrUnreachable, rdma.ErrTimeout) {
		if errors.Is(err, a) {
			return false
		}
	}
	if err != nil {
		c.breach("%v", err)
	}
	return err == nil
}

// worker claims identities, competes for the role, and gives them back, or not.
func (p *process) worker(t *task, turns int) {
	c := p.c
	for range turns {
		t.sleep(c.between(0, 5*time.Millisecond))
		claimed, err := p.Claim("worker")
		if !c.check(err, rdma.ErrFull) {
			continue
		}
		l := life{claimed.ID, claimed.Life}
		if other, ok := c.holds[l.id]; ok || l.life <= c.lives[l.id] {
			c.breach("%s claims %+v, while %+v has it, and life %d was", p.name, l, other, c.lives[l.id])
		}
		c.holds[l.id], c.lives[l.id] = l, l.life
		tries, pause := c.IntN(4), masterLease/2
		if c.store.fast {
			tries, pause = 10*tries, masterLease/20
		}
		for range tries {
			r, ok, err := p.TryMaster(l.id, masterLease)
			if c.check(err) && ok {
				p.reign(t, l, r)
			}
			t.sleep(c.between(0, pause))
		}
		c.leave(l)
		delete(c.holds, l.id)
		for p.Release(claimed) != nil {
			t.sleep(time.Millisecond)
		}
	}
	p.left--
}

// leave ends what l reigns, since it is about to close.
func (c *poolModel) leave(l life) {
	for _, r := range c.reigns {
		if r.life == l && r.end > c.now {
			r.end = c.now
		}
	}
}

// reign is a tenure of l, which may be prolonged, or slept through, or resigned from.
func (p *process) reign(t *task, l life, r rdma.Role) {
	c := p.c
	until := func(d time.Duration) time.Duration {
		return time.Duration(math.Floor(float64(d-p.clock.begin) / p.rate))
	}
	mine := &reign{life: l, of: p, epoch: r.Epoch, begin: c.now, end: until(r.Until)}
	c.reigns = append(c.reigns, mine)
	c.begun = max(c.begun, r.Epoch)
	p.govern()
	p.configure(r)
	for range c.IntN(4) {
		t.sleep(c.between(0, masterLease/2))
		if c.chance(0.1) {
			t.sleep(2 * masterLease)
		}
		longer, ok, err := p.Renew(r, masterLease)
		if !c.check(err) {
			continue
		}
		if !ok {
			return
		}
		if longer.Epoch != r.Epoch || longer.Owner != r.Owner {
			c.breach("%+v is prolonged as %+v", r, longer)
		}
		r, mine.end = longer, until(longer.Until)
		p.configure(r)
	}
	if c.chance(0.7) {
		mine.end = min(mine.end, c.now)
		p.Resign(r)
	}
}

// govern does with the view what a master does.
func (p *process) govern() {
	c := p.c
	v, down, err := p.View()
	if !c.check(err) {
		return
	}
	for n := range down {
		if c.down[n] && !down[n] {
			c.breach("node %d is not down any more", n)
		}
	}
	busy := rdma.State{Epoch: v.Epoch + 1, Busy: true}
	ok, err := p.Advance(rdma.State{Epoch: v.Epoch, Busy: v.Busy}, busy)
	if !c.check(err) || !ok {
		return
	}
	if c.won[busy.Epoch] {
		c.breach("epoch %d begins twice", busy.Epoch)
	}
	c.won[busy.Epoch] = true
	node := c.IntN(3)
	if c.check(p.SetDown(busy.Epoch, node), rdma.ErrStale) {
		c.down[node] = true
	}
	if ok, err := p.SetMember(busy.Epoch, node, v.Members[node],
		rdma.Member{Gone: true, Since: busy.Epoch}); err == nil && ok {
		v, _, err := p.View()
		if c.check(err) && !v.Members[node].Gone {
			c.breach("node %d is gone, and then %v", node, v.Members[node])
		}
	} else {
		c.check(err, rdma.ErrAccess) // it is so already
	}
	_, err = p.Advance(busy, rdma.State{Epoch: busy.Epoch})
	c.check(err)
}

// configure replaces the configuration, which it may have read a while ago.
func (p *process) configure(r rdma.Role) {
	c, user := p.c, int(r.Owner)
	began := c.log.Begin()
	is, err := p.Config()
	if !c.check(err) {
		return
	}
	if err := c.log.Loaded(user, configKey, began, string(is.Data), is.Version); err != nil {
		c.breach("%v", err)
	}
	if c.chance(0.2) {
		c.current.sleep(c.between(0, 2*masterLease))
	}
	began = c.log.Begin()
	to := fmt.Sprintf("%s.%d", p.name, began)
	note := func(ok, known bool) { c.log.Swapped(user, configKey, began, string(is.Data), to, ok, known) }
	c.flying[to] = func() { note(false, false) }
	ok, err := p.SwapConfig(r, is.Version, []byte(to))
	delete(c.flying, to)
	switch {
	case c.check(err, rdma.ErrStale):
		note(ok, true)
	case !errors.Is(err, rdma.ErrStale):
		note(false, false)
	}
}

// recover frees the identities of those that died or were fenced off.
func (p *process) recover(t *task, rounds int) {
	c := p.c
	for range rounds {
		t.sleep(c.between(0, 20*time.Millisecond))
		holders, err := p.Clients()
		if !c.check(err) {
			continue
		}
		for _, h := range holders {
			l := life{h.ID, h.Life}
			if c.attached(h) && !h.Closed {
				continue
			}
			if !c.check(p.revoke(h.Client)) {
				continue
			}
			if c.holds[l.id] == l {
				delete(c.holds, l.id)
			}
			c.check(p.Forget(h.Client, func(h Holder) (bool, error) { return c.attached(h), nil }))
		}
	}
}

func (c *poolModel) attached(h Holder) bool {
	return slices.ContainsFunc(c.registries, func(p *process) bool { return p.name == h.Process && !p.dead })
}

// judge looks for two masters at a time, and for an order of what was done with the configuration.
func (c *poolModel) judge() {
	for _, note := range c.flying { // notes of processes that died
		note()
	}
	if err := c.log.Check(); err != nil {
		c.breach("%v", err)
	}
	slices.SortStableFunc(c.reigns, func(a, b *reign) int { return cmp.Compare(a.begin, b.begin) })
	for i := 1; i < len(c.reigns); i++ {
		last, next := c.reigns[i-1], c.reigns[i]
		if next.epoch <= last.epoch {
			c.breach("a tenure in epoch %d follows one in epoch %d", next.epoch, last.epoch)
		}
		if next.begin < last.end {
			c.breach("two masters: %+v in epoch %d until %v, and %+v in epoch %d from %v",
				last.life, last.epoch, last.end, next.life, next.epoch, next.begin)
		}
	}
}

func registryRun(t *testing.T, seed uint64) *poolModel {
	w := newWorld(t, seed)
	c := &poolModel{
		world: w, store: &farStore{w: w}, clients: 2 + w.IntN(6), holds: map[rdma.ClientID]life{},
		lives: map[rdma.ClientID]uint64{}, fenced: map[life]bool{}, won: map[uint64]bool{},
		log: history.New(), flying: map[string]func(){},
	}
	c.store.Store = &witness{Memory(), c}
	c.store.fast = w.chance(0.3)
	if w.chance(0.7) {
		c.store.lost = 0.15 * w.Float64()
	}
	for n := range 1 + w.IntN(4) {
		p := c.process(fmt.Sprint("process", n))
		var tasks []*task
		for range 1 + w.IntN(3) {
			p.left++
			tasks = append(tasks, w.spawn(func(t *task) { p.worker(t, 3+w.IntN(5)) }))
		}
		if w.chance(0.3) {
			w.after(w.between(0, 300*time.Millisecond), func() {
				p.dead = true // and what it reigned is forgotten with it, as soon as its death is noticed
				for _, r := range c.reigns {
					if r.of == p {
						r.end = min(r.end, c.now)
					}
				}
				for _, t := range tasks {
					t.crashed = true
				}
			})
		}
	}
	keeper := c.process("keeper")
	w.spawn(func(t *task) { keeper.recover(t, 50) })
	w.run(time.Minute)
	c.store.lost = 0
	w.spawn(func(t *task) {
		for _, p := range c.registries {
			if p.left > 0 && !p.dead {
				c.breach("a worker of %s waits for ever", p.name)
			}
			if !p.dead {
				c.check(p.Settle())
			}
		}
		keeper.recover(t, 3)
		if holders, err := keeper.Clients(); err != nil || len(holders) > 0 {
			c.breach("identities are left: %+v, %v", holders, err)
		}
	})
	w.run(2 * time.Minute)
	c.judge()
	w.unwind()
	return c
}

// TestRegistrySim has processes, with clocks that drift, claim identities and compete for the
// master's role over a store that loses answers; some die.
func TestRegistrySim(t *testing.T) {
	claims, reigns, fenced, epochs, configs := 0, 0, 0, 0, 0
	n := forSeeds(t, 1000, func(t *testing.T, seed uint64) {
		c := registryRun(t, seed)
		for _, b := range c.broken {
			t.Errorf("seed %d: %s", seed, b)
		}
		for _, l := range c.lives {
			claims += int(l)
		}
		reigns += len(c.reigns)
		fenced += len(c.fenced)
		epochs += len(c.won)
		configs += c.configs
	})
	if !t.Failed() && n >= enough && (claims < 5*n || reigns < 5*n || fenced < n || epochs < n || configs < n) {
		t.Errorf("%d claims, %d tenures, %d lives fenced off, %d epochs, %d configurations: too few", claims, reigns,
			fenced, epochs, configs)
	}
	t.Logf("%d claims, %d tenures, %d lives fenced off, %d epochs, %d configurations", claims, reigns,
		fenced, epochs, configs)
}
