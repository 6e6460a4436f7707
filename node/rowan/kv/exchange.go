package kv

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
)

// gift is what a server gives others at the beginning of a term: records that may not be on all
// replicas of their shards. They are in segments that are not committed, so that no cleaner frees
// them.
type gift struct {
	term    *term
	records []located
}

// exchanger is the task that appends to others' logs what the server has and they may not: at the
// beginning of a term what may not be on all replicas (section 4.5, phase 2), and then all of the
// shards that others copy (phase 3). It also finds out what the server has when replicas are
// compared, and empties the indexes of shards that it has lost.
type exchanger struct {
	s       *Server
	ep      rdma.Endpoint
	senders []*rowan.Sender // by node
	logs    []*rowan.Remote // by node, with other kinds than Rowan; nil: the server's own
	asked   []asking
	term    *term
	above   uint64 // no stamp of an entry that was appended before is
	gave    bool   // in this term, all that is to be given
	copies  []*copying
	chain   []uint64
	entries []exchanged

	compared comparison // in this term
}

// copying is a copy of a shard at another server. It goes on in later terms: the other one has been
// a replica ever since.
type copying struct {
	shard, node int
	since       uint64 // the other one is a member
	next        int    // chain of the index
	told        uint64 // the term in which the other one was told that it has all
	held        uint64 // the term in which an entry was damaged: without it the other one would not have all
	target      bool   // the other one is the target of a migration
}

// exchanged is an entry that is appended.
type exchanged struct {
	shard int
	kind  uint8
	data  []byte
}

// errOver ends what was begun in a term that is over.
var errOver = errors.New("the term is over")

// exchange is the task.
func (s *Server) exchange(ep rdma.Endpoint) error {
	x := s.newExchanger(ep)
	l := s.newLull(ep, s.o.StepEvery)
	for !s.stopping() {
		more, err := x.step()
		if err != nil && !errors.Is(err, errOver) {
			return err
		}
		if pause := l.next(more); !more {
			ep.Sleep(pause)
		}
	}
	return nil
}

func (s *Server) newExchanger(ep rdma.Endpoint) *exchanger {
	x := &exchanger{s: s, ep: ep, senders: make([]*rowan.Sender, s.o.Nodes)}
	if s.o.Kind == Rowan {
		return x
	}
	x.logs, x.asked = make([]*rowan.Remote, s.o.Nodes), make([]asking, s.o.Nodes)
	for node := range x.logs {
		if node != s.node {
			x.logs[node] = s.newRemote(node, int(s.o.exchange(s.node)))
		}
	}
	return x
}

// step does one thing of what there is to do.
func (x *exchanger) step() (more bool, err error) {
	question := x.s.quiet.last()
	g := x.s.takeGift()
	if t := x.s.known.last(); t != x.term {
		x.begin(t)
	}
	if err := x.ask(); err != nil {
		return false, err
	}
	if g != nil {
		return true, x.give(g)
	}
	x.s.quiet.pass(x.s.o.exchanger(), question)
	if !x.gave {
		return false, nil
	}
	if x.term.Compare && !x.compared.over && x.s.known.isSettled(x.term.Term) {
		return true, x.compare()
	}
	for _, c := range x.copies {
		if c.told != x.term.Term && c.held != x.term.Term && x.s.known.isSettled(x.term.Term) {
			return true, x.copy(c)
		}
	}
	for _, sh := range x.s.shards {
		if old := sh.leaving(x.term.Term); old != nil {
			return true, x.empty(sh, old)
		}
	}
	return false, nil
}

// takeGift takes what is to be given; nil: nothing is. As long as it is not taken no question of
// cleaners is passed that was asked behind it.
func (s *Server) takeGift() *gift {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gift
	s.gift = nil
	return g
}

// begin begins with a term: nothing is under way in earlier ones.
func (x *exchanger) begin(t *term) {
	x.term, x.gave, x.compared = t, false, comparison{}
	x.raise(t.stamps())
	for node, log := range x.logs {
		if log != nil && t.Committed {
			log.Begin(t.writesTo(node))
		}
	}
	x.copies = slices.DeleteFunc(x.copies, func(c *copying) bool {
		m := t.Member(c.node)
		return !slices.Contains(t.copiesTo(c.shard), c.node) || m == nil || m.Since != c.since ||
			c.target != (t.Shards[c.shard].Primary == c.node) // it was damaged, and begins anew
	})
	for i := range t.Shards {
		for _, n := range t.copiesTo(i) {
			if !slices.ContainsFunc(x.copies, func(c *copying) bool { return c.shard == i && c.node == n }) {
				x.copies = append(x.copies, &copying{shard: i, node: n, since: t.Member(n).Since, target: t.Shards[i].Primary == n})
			}
		}
	}
	x.s.seen(x.s.o.Workers, t.Term)
}

// raise has stamps go on behind one.
func (x *exchanger) raise(above uint64) {
	x.above = above
	for _, s := range x.senders {
		if s != nil {
			s.Raise(above)
		}
	}
}

// give appends records to the logs of all other replicas of their shards, and when they are there
// says so to all members.
func (x *exchanger) give(g *gift) (err error) {
	if g.term != x.term {
		return errOver
	}
	x.entries = x.entries[:0]
	for _, r := range g.records {
		switch err := x.read(r.shard, r.at); {
		case errors.Is(err, rowan.ErrDamaged):
			continue // nothing is served by it: what other replicas have of the key counts
		case err != nil:
			return err
		}
		// Of a key the newest alone: another replica may have dropped the tombstone of an older one.
		last := len(x.entries) - 1
		record, _ := parseRecord(x.entries[last].data)
		_, live := x.s.shards[r.shard].naming(Hash(record.key), r.at)
		if live {
			live, err = x.isNewest(r, Hash(record.key))
		}
		if err != nil {
			return err
		}
		if !live {
			x.entries = x.entries[:last]
		}
	}
	for _, m := range g.term.Members {
		for _, e := range x.entries {
			if m.Node != g.term.node && g.term.Shards[e.shard].Has(m.Node) {
				if err := x.append(m.Node, e); err != nil {
					return err
				}
			}
		}
	}
	for _, m := range g.term.Members {
		if err := x.tell(m.Node, x.s.o.gaveAt(m.Node, x.s.node), x.term.Term); err != nil {
			return err
		}
	}
	x.raise(x.term.gifts()) // members that have not settled yet do not take what is copied for what is given
	x.gave = true
	return nil
}

// isNewest reports whether an entry that the index names is the newest of its key, as far as is
// known: one that is damaged, and named beside it, may be newer.
func (x *exchanger) isNewest(r located, hash uint64) (bool, error) {
	names := x.s.shards[r.shard].has()
	if names == nil {
		return false, errOver
	}
	for _, at := range names.Lookup(hash, nil) {
		if at == r.at {
			continue
		}
		_, _, err := x.s.readWhole(x.ep, x.term.Term, r.shard, at)
		if errors.Is(err, rowan.ErrDamaged) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// copy appends what a chain of the index names to the log of a server that copies the shard, or
// tells it that all are there. Entries that come to be named meanwhile are appended there, too, by
// workers: the term began with the copy, or behind it. Those that are moved stay in their chain.
func (x *exchanger) copy(c *copying) error {
	names := x.s.shards[c.shard].has()
	switch {
	case names == nil:
		return errOver
	case c.next == names.Chains():
		if err := x.tell(c.node, x.s.o.copiedAt(c.node, c.shard), x.stamp(c.node)); err != nil {
			return err
		}
		c.told = x.term.Term
		return nil
	}
	x.chain = names.Chain(c.next, x.chain[:0])
	x.entries = x.entries[:0]
	for _, at := range x.chain {
		switch err := x.read(c.shard, at); {
		case errors.Is(err, rowan.ErrDamaged):
			c.held = x.term.Term
			return nil
		case err != nil:
			return err
		}
	}
	for _, e := range x.entries {
		if err := x.append(c.node, e); err != nil {
			return err
		}
	}
	c.next++
	return nil
}

// empty removes what an index of a shard names that the server has lost, so that it is garbage.
// Nothing is added to the index any more.
func (x *exchanger) empty(sh *shard, old *index.Index) error {
	for chain := range old.Chains() {
		for x.chain = old.Chain(chain, x.chain[:0]); len(x.chain) > 0; x.chain = old.Chain(chain, x.chain[:0]) {
			b := x.ep.Batch()
			x.s.readHeads(b, x.chain, 0)
			err := rdma.Do(x.ep, b.As("read what is lost"), patience)
			for i, at := range x.chain {
				f, _ := parseFound(at, b.Op(i).Buf)    // whatever it says, if it is damaged
				if err == nil && old.Drop(chain, at) { // no cleaner did
					x.s.space.dead(at, x.s.segment(at), entrySize(f.length), f.kind)
				}
			}
			b.Release()
			if err != nil {
				return fmt.Errorf("empty the index of shard %d: %w", sh.number, err)
			}
		}
		if err := x.pass(); err != nil {
			return err
		}
	}
	sh.forget(old)
	return nil
}

// read takes a copy of an entry that the index names, or named. The error wraps rowan.ErrDamaged
// when it is not as it was sealed: sealed anew, it would be taken for a good one elsewhere.
func (x *exchanger) read(shard int, at uint64) error {
	kind, data, err := x.s.readWhole(x.ep, x.term.Term, shard, at)
	if err != nil {
		return fmt.Errorf("read the entry at %s: %w", x.s.at(at), err)
	}
	x.entries = append(x.entries, exchanged{shard: shard, kind: kind, data: data})
	return nil
}

// append appends an entry to the log of another server, again until it is there: that one may be
// about to be found dead.
func (x *exchanger) append(node int, e exchanged) error {
	if x.logs != nil {
		return x.write(node, e)
	}
	return x.insist(func() error {
		s, err := x.sender(node)
		if err != nil {
			return err
		}
		if err := s.Try(len(e.data)); err != nil {
			return err
		}
		b := x.ep.Batch()
		defer b.Release()
		op, err := s.Add(b, e.kind, e.data)
		if err != nil {
			return err
		}
		posted := x.ep.Now()
		if err := x.do(node, b.As("exchange")); err != nil {
			return err // of the task, which ends, or the other one is dead
		}
		return s.Acknowledged(op, posted)
	})
}

// write does so with a remote log, whose entry keeps its place.
func (x *exchanger) write(node int, e exchanged) error {
	log, at, placed := x.logs[node], rowan.Place{}, false
	err := x.insist(func() (err error) {
		if !placed {
			if at, err = log.Place(len(e.data), true); err != nil {
				return errors.Join(x.ask(), err)
			}
			placed = true
		}
		b := x.ep.Batch()
		defer b.Release()
		b.Chain()
		p := b.Alloc(rowan.Size(len(e.data)))
		log.Seal(at, e.kind, uint32(x.term.Term), e.data, p)
		b.Write(at.At, p)
		b.Read(at.At, 8)
		if err := x.do(node, b.As("exchange")); err != nil {
			return err
		}
		return b.Err()
	})
	if err == nil {
		log.Landed(at)
		x.above++ // see stamp
	}
	return err
}

// ask goes on asking for segments of remote logs.
func (x *exchanger) ask() error {
	for node, log := range x.logs {
		if log != nil {
			if err := x.asked[node].step(x.ep, log, func(time.Duration) {}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *exchanger) sender(node int) (*rowan.Sender, error) {
	if x.senders[node] == nil {
		s, err := rowan.NewSender(x.ep, rowan.SenderOptions{
			Log: x.s.o.log(node), Source: x.s.o.exchange(x.s.node), Above: x.above, Later: true,
		})
		if err != nil {
			return nil, err
		}
		x.senders[node] = s
	}
	return x.senders[node], nil
}

// stamp returns that of the last entry that was appended to the log of another server, or one
// behind those that were given. Its upper half is the term. Stamps in remote logs are below those
// of gifts: what is above these counts entries.
func (x *exchanger) stamp(node int) uint64 {
	if s := x.senders[node]; s != nil {
		return s.Stamp()
	}
	return x.above
}

// tell writes a word at another server.
func (x *exchanger) tell(node int, at rdma.Addr, word uint64) error {
	return x.insist(func() error {
		b := x.ep.Batch()
		defer b.Release()
		b.WriteWord(at, word)
		b.Read(at, 8)
		if err := x.do(node, b.As("tell")); err != nil {
			return err
		}
		return b.Err()
	})
}

// do posts a batch for another server and waits until it is complete, or the other one is dead: in
// a later term nothing is in flight.
func (x *exchanger) do(node int, b *rdma.Batch) error {
	if err := x.ep.Post(b); err != nil {
		return err
	}
	for {
		err := x.ep.Wait(b, rdma.All, time.Millisecond)
		if !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
		if x.s.known.last().Member(node) == nil || x.s.stopping() {
			return errOver
		}
	}
}

// insist does something at another server until that succeeds, or the term is over, in which the
// other one lives. That may wait for room there, so that this server's cleaners do not wait for it:
// what is appended was copied.
func (x *exchanger) insist(do func() error) error {
	for {
		if err := x.pass(); err != nil {
			return err
		}
		err := do()
		switch {
		case err == nil, fatal(err):
			return err
		case errors.Is(err, rdma.ErrStale):
			if _, err := x.ep.Join(); err != nil {
				return err
			}
		}
		x.ep.Sleep(exchangePause)
	}
}

// pass passes questions of cleaners, unless the term is over: then there may be a gift that was not
// taken, and what it names was not read.
func (x *exchanger) pass() error {
	question := x.s.quiet.last()
	if x.s.known.last() != x.term || x.s.stopping() {
		return errOver
	}
	x.s.quiet.pass(x.s.o.exchanger(), question)
	return nil
}

const exchangePause = 20 * time.Microsecond

// fatal reports whether an error of a verb at another server is of the task itself.
func fatal(err error) bool {
	return errors.Is(err, errOver) || errors.Is(err, rdma.ErrClosed) || errors.Is(err, rdma.ErrRevoked) ||
		errors.Is(err, rdma.ErrMessageSize)
}
