package exchange

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// Exchanger is the task that appends to other servers' logs what they may not have: at the
// beginning of a term the records that may not be on all replicas (section 4.5, phase 2), and then
// all of the shards that others copy (phase 3). It also digests the server's replicas when replicas
// are compared, and empties the indexes of shards that the server has lost.
//
// What is sent keeps a rule on which tombstones rely: a replica that has a PUT which a DEL deleted
// has that DEL, too, or something newer. So of each key only the newest record is sent, and a
// server that receives records drops no tombstones of the shard meanwhile: see
// state.Server.MayDrop. An exchanger that dies in the middle leaves a part of the records at the
// other server. They have the term and version that they had here, so sending them again is
// harmless.
type Exchanger struct {
	s  *state.Server
	ep rdma.Endpoint
	// By node; nil: nothing was sent there yet.
	// They live through changes of the term, which raise their stamps.
	senders []*rowan.Sender
	// By node, with kinds other than Rowan; nil: the server's own.
	logs  []*rowan.Remote
	asked []state.Asking
	// The term in which the task works.
	term *state.Term
	// No stamp of an entry that was appended before exceeds it. It never falls: the stamps of a
	// later term are higher.
	above uint64
	// In this term all that is to be given was given, and each member was told.
	gave bool
	// When it tells that again.
	again time.Duration
	// Copies that the server makes in this term.
	copies []*copying
	// Buffers that are used again: offsets of entries, and entries that were read.
	chain   []uint64
	entries []exchanged

	compared comparison // in this term
}

// copying is the copy of a shard to another server. It survives a change of the term if the other
// server has stayed a replica ever since: the copy need not begin again.
type copying struct {
	// The copy is identified by the shard, the other server, and since when that is a member.
	shard, node int
	// The term since which the other server is a member.
	since uint64
	// The next chain of the index to be copied.
	next int
	// The term in which the other server was told that it has all.
	told uint64
	// The term in which the copy met a damaged entry and stopped. Without that entry the other
	// server would not be complete.
	held uint64
	// The other server is the target of a migration.
	target bool
}

// exchanged is an entry that is sent. Its data is a copy.
type exchanged struct {
	shard int
	kind  uint8
	// It belongs to the exchanger, so cleaners may free the entry it was read from.
	data []byte
}

// errOver stops work of a term that is over, or of a server that stops.
var errOver = errors.New("the term is over")

// Run is the exchanger's task.
func Run(s *state.Server, ep rdma.Endpoint) error {
	x := New(s, ep)
	l := s.NewLull(ep, s.Opt.StepEvery)
	for !s.Tasks.Stopping() {
		// errOver is no error: the next step begins with the term that there is.
		more, err := x.Step()
		if err != nil && !errors.Is(err, errOver) {
			return err
		}
		if pause := l.Next(more); !more {
			ep.Sleep(pause)
		}
	}
	return nil
}

// New returns the exchanger of a server. It does nothing before Step.
func New(s *state.Server, ep rdma.Endpoint) *Exchanger {
	// With Rowan there is one source for each exchanger at each ring, and it is urgent.
	x := &Exchanger{s: s, ep: ep, senders: make([]*rowan.Sender, s.Opt.Nodes)}
	if s.Opt.Kind == kv.Rowan {
		return x
	}
	x.logs, x.asked = make([]*rowan.Remote, s.Opt.Nodes), make([]state.Asking, s.Opt.Nodes)
	// One remote log at each other server is the exchanger's alone.
	for node := range x.logs {
		if node != s.Node {
			x.logs[node] = s.NewRemote(node, int(s.Opt.ExchangeSource(s.Node)))
		}
	}
	return x
}

// Step does the next piece of work, and reports whether there was any. Gifts come first: the other
// members wait for them. Copies and the comparison wait until the server has what others gave.
func (x *Exchanger) Step() (more bool, err error) {
	// It is noted before the gift is taken: a later one must wait until the entries of a gift are
	// read.
	question := x.s.Quiet.Last()
	g := x.s.Exchange.Take()
	// A term that is replaced meanwhile is found by insist and pass, which end the work in hand.
	if t := x.s.Known.Last(); t != x.term {
		x.begin(t)
	}
	// Remote logs get segments ahead of when they are needed.
	if err := x.ask(); err != nil {
		return false, err
	}
	if g != nil {
		return true, x.give(g)
	}
	// No entry that was looked up earlier is in hand.
	x.s.Quiet.Pass(x.s.Opt.ExchangerReader(), question)
	// Entries of copies have later stamps than gifts, by which members tell them apart.
	if !x.gave {
		return false, nil
	}
	if x.ep.Now() >= x.again {
		return true, x.tellAgain()
	}
	// Replicas can be compared once each of them has all that was given.
	if x.term.Compare && !x.compared.over && x.s.Known.IsSettled(x.term.Term) {
		return true, x.compare()
	}
	// A copy begins once the server has all that was given: until then its index may lack records.
	for _, c := range x.copies {
		if c.told != x.term.Term && c.held != x.term.Term && x.s.Known.IsSettled(x.term.Term) {
			return true, x.copy(c)
		}
	}
	// Last, since it only makes garbage of what was lost. No worker uses the old index: it was lost
	// in a term that all of them have reached.
	for _, sh := range x.s.Shards {
		// Quiet says that all workers are in the term.
		if old := sh.Leaving(x.term.Term); old != nil {
			return true, x.empty(sh, old)
		}
	}
	return false, nil
}

// begin starts a term. Nothing of earlier terms is in flight. Copies go on where the other server
// has been a member and a replica ever since, in the same role; others are dropped, and new ones
// begin.
func (x *Exchanger) begin(t *state.Term) {
	x.term, x.gave, x.compared = t, false, comparison{}
	// What is sent from now on is of this term, as its stamp says.
	x.raise(t.Stamps())
	for node, log := range x.logs {
		if log != nil && t.Committed {
			// Places of earlier terms are not used any more: the lender has settled them.
			log.Begin(t.WritesTo(node))
		}
	}
	x.copies = slices.DeleteFunc(x.copies, func(c *copying) bool {
		m := t.Member(c.node)
		return !slices.Contains(t.CopiesTo(c.shard), c.node) || m == nil || m.Since != c.since ||
			// A replica that was damaged has changed its role, and begins anew.
			c.target != (t.Shards[c.shard].Primary == c.node)
	})
	for i := range t.Shards {
		// A copy that goes on is in the list already.
		for _, n := range t.CopiesTo(i) {
			if !slices.ContainsFunc(x.copies, func(c *copying) bool { return c.shard == i && c.node == n }) {
				x.copies = append(x.copies,
					&copying{shard: i, node: n, since: t.Member(n).Since, target: t.Shards[i].Primary == n})
			}
		}
	}
	// The control task says that the server is quiet only behind this.
	x.s.Known.Seen(x.s.Opt.Workers, t.Term)
}

// raise makes the stamps of later entries greater than above.
func (x *Exchanger) raise(above uint64) {
	x.above = above
	for _, s := range x.senders {
		if s != nil {
			s.Raise(above)
		}
	}
}

// give appends the records of a gift to the logs of all other replicas of their shards. Once all
// are there it writes the term to a word at each member. A crash anywhere leaves some records on
// some replicas, under the term and version that they had. The next term gives them again.
func (x *Exchanger) give(g *state.Gift) (err error) {
	if g.Term != x.term {
		return errOver
	}
	// All entries of a gift are read before the first one is sent: from then on cleaners may free
	// their segments.
	x.entries = x.entries[:0]
	for _, r := range g.Records {
		switch err := x.read(r.Shard, r.At); {
		case errors.Is(err, rowan.ErrDamaged):
			continue // damaged here, so it decides nothing: what other replicas have of the key counts
		case err != nil:
			return err
		}
		// Only the newest record of a key is sent: another replica may have dropped the tombstone
		// of an older one.
		last := len(x.entries) - 1
		// It was verified, so it is a record.
		record, _ := kv.ParseRecord(x.entries[last].data)
		// What no index names is superseded by a record that is given, too, or is on all replicas.
		_, live := x.s.Shards[r.Shard].Naming(kv.Hash(record.Key), r.At)
		if live {
			live, err = x.isNewest(r, kv.Hash(record.Key))
		}
		if err != nil {
			return err
		}
		if !live {
			x.entries = x.entries[:last]
		}
	}
	// All members get the same records of a shard, whichever of them have some already.
	for _, m := range g.Term.Members {
		for _, e := range x.entries {
			if m.Node != g.Term.Node && g.Term.Shards[e.shard].Has(m.Node) {
				if err := x.append(m.Node, e); err != nil {
					return err
				}
			}
		}
	}
	for _, m := range g.Term.Members {
		if err := x.tell(m.Node, x.s.Opt.GaveAt(m.Node, x.s.Node), x.term.Term); err != nil {
			return err
		}
	}
	x.again = x.ep.Now() + tellEvery
	x.raise(x.term.Gifts()) // so that what is copied is not taken for a gift by members that have not settled yet
	// From here on copies may begin.
	x.gave = true
	return nil
}

// tellEvery is how often a server tells again what it has told in a term.
const tellEvery = time.Second

// tellAgain writes the words again that others wait for: a bit that flips in one would keep its
// reader waiting for as long as the term lasts. Nothing that was sent is in flight, so each word
// says what is so.
func (x *Exchanger) tellAgain() error {
	x.again = x.ep.Now() + tellEvery
	for _, m := range x.term.Members {
		if err := x.tell(m.Node, x.s.Opt.GaveAt(m.Node, x.s.Node), x.term.Term); err != nil {
			return err
		}
	}
	for _, c := range x.copies {
		if c.told != x.term.Term {
			continue
		}
		if err := x.tell(c.node, x.s.Opt.CopiedAt(c.node, c.shard), x.stamp(c.node)); err != nil {
			return err
		}
	}
	return nil
}

// isNewest reports whether an entry that the index names is the newest of its key, as far as is
// known. If the index names a damaged entry with the same tag, that one may be newer.
func (x *Exchanger) isNewest(r state.Located, hash uint64) (bool, error) {
	names := x.s.Shards[r.Shard].Index()
	// The shard was lost in a later term.
	if names == nil {
		return false, errOver
	}
	for _, at := range names.Lookup(hash, nil) {
		if at == r.At {
			continue
		}
		// It is verified only; which record it is does not matter.
		_, _, err := x.s.ReadWhole(x.ep, x.term.Term, r.Shard, at)
		if errors.Is(err, rowan.ErrDamaged) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// copy appends the entries of one chain of the index to the log of a server that copies the shard.
// After the last chain it tells that server that it has all.
//
// An entry that the index comes to name meanwhile is appended there by a worker: the other server
// was a replica before the copy began. An entry that is moved meanwhile stays in its chain. So no
// key is missed.
func (x *Exchanger) copy(c *copying) error {
	names := x.s.Shards[c.shard].Index()
	switch {
	case names == nil:
		return errOver
	// All chains were appended, and acknowledged, before the word is written.
	case c.next == names.Chains():
		if err := x.tell(c.node, x.s.Opt.CopiedAt(c.node, c.shard), x.stamp(c.node)); err != nil {
			return err
		}
		// It is told again in the next term, by then without any copying.
		c.told = x.term.Term
		return nil
	}
	// Items may be added to the chain behind the lookup: a worker sends these to the other server
	// itself.
	x.chain = names.Chain(c.next, x.chain[:0])
	x.entries = x.entries[:0]
	for _, at := range x.chain {
		switch err := x.read(c.shard, at); {
		case errors.Is(err, rowan.ErrDamaged):
			// The damage is noted, so the manager begins another term.
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
	// A crash of the term ends the copy behind a chain, where it goes on.
	c.next++
	return nil
}

// empty removes from an old index what it still names of a shard that the server has lost, so that
// the entries are garbage. Nothing is added to that index any more.
func (x *Exchanger) empty(sh *state.Shard, old *index.Index) error {
	// A cleaner may remove items at the same time: whichever is first counts them as dead.
	for chain := range old.Chains() {
		for x.chain = old.Chain(chain, x.chain[:0]); len(x.chain) > 0; x.chain = old.Chain(chain, x.chain[:0]) {
			// A whole chain is read in one trip.
			b := x.ep.Batch()
			x.s.ReadHeads(b, x.chain, 0)
			err := rdma.Do(x.ep, b.As("read what is lost"), kv.LocalTimeout)
			for i, at := range x.chain {
				f, _ := kv.ParseFound(at, b.Op(i).Buf) // of a damaged entry the length is not known
				if err == nil && old.Drop(chain, at) { // no cleaner was first
					x.s.Space.Dead(at, x.s.SegmentOf(at), kv.EntrySize(f.Length), f.Kind)
				}
			}
			b.Release()
			if err != nil {
				return fmt.Errorf("empty the index of shard %d: %w", sh.Number, err)
			}
		}
		// Emptying an index takes long, and cleaners wait for the answer.
		if err := x.pass(); err != nil {
			return err
		}
	}
	sh.Forget(old)
	return nil
}

// read appends a copy of an entry to x.entries. The error wraps rowan.ErrDamaged when the entry is
// damaged: it must not be sealed anew, or it would pass for intact elsewhere.
func (x *Exchanger) read(shard int, at uint64) error {
	// The entry may be superseded, or moved, while it is read. No cleaner frees its segment before
	// this task has passed its question.
	kind, data, err := x.s.ReadWhole(x.ep, x.term.Term, shard, at)
	if err != nil {
		return fmt.Errorf("read the entry at %s: %w", x.s.At(at), err)
	}
	x.entries = append(x.entries, exchanged{shard: shard, kind: kind, data: data})
	return nil
}

// append appends an entry to the log of another server. It repeats that until the entry is there or
// the term is over, in which the other server may be found dead.
func (x *Exchanger) append(node int, e exchanged) error {
	// With remote logs the exchanger knows the place of each entry.
	if x.logs != nil {
		return x.write(node, e)
	}
	return x.insist(func() error {
		s, err := x.sender(node)
		if err != nil {
			return err
		}
		// The exchanger is an urgent source: it has leave for the reserve.
		if err := s.Try(len(e.data)); err != nil {
			return err
		}
		b := x.ep.Batch()
		defer b.Release()
		op, err := s.Add(b, e.kind, e.data)
		if err != nil {
			return err
		}
		// The sender accounts for the leave by when the append was posted.
		posted := x.ep.Now()
		if err := x.do(node, b.As("exchange")); err != nil {
			return err // of the task, which ends, or the other one is dead
		}
		// Its error has the append repeated. An equal record twice does no harm.
		return s.Acknowledged(op, posted)
	})
}

// write is append to a remote log. The entry keeps its place across attempts.
func (x *Exchanger) write(node int, e exchanged) error {
	// The place is taken once, however often the WRITE is repeated.
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
		// The term is this one: the entry comes to the other server now.
		log.Seal(at, e.kind, uint32(x.term.Term), e.data, p)
		b.Write(at.At, p)
		b.Read(at.At, 8)
		if err := x.do(node, b.As("exchange")); err != nil {
			return err
		}
		return b.Err()
	})
	if err == nil {
		// The log may leave the segment.
		log.Landed(at)
		x.above++ // see stamp
	}
	return err
}

// ask asks for segments of remote logs, as needed.
func (x *Exchanger) ask() error {
	for node, log := range x.logs {
		if log != nil {
			if err := x.asked[node].Step(x.ep, log, func(time.Duration) {}); err != nil {
				return err
			}
		}
	}
	return nil
}

// sender returns the sender to a node, and makes it when it is needed first.
func (x *Exchanger) sender(node int) (*rowan.Sender, error) {
	if x.senders[node] == nil {
		// It lives as long as the exchanger; terms raise its stamps.
		s, err := rowan.NewSender(x.ep, rowan.SenderOptions{
			Log: x.s.Opt.LogOf(node), Source: x.s.Opt.ExchangeSource(x.s.Node), Above: x.above, Later: true,
		})
		if err != nil {
			return nil, err
		}
		x.senders[node] = s
	}
	return x.senders[node], nil
}

// stamp returns a number that tells another server up to where to settle: with a ring the stamp
// of the last entry that was sent, with remote logs a count above the stamps of gifts. Its
// upper half is the term in both cases.
func (x *Exchanger) stamp(node int) uint64 {
	// The receiver settles the source up to this stamp.
	if s := x.senders[node]; s != nil {
		return s.Stamp()
	}
	return x.above
}

// tell writes a word at another server, durably, and repeats that until it succeeds or the term is
// over.
func (x *Exchanger) tell(node int, at rdma.Addr, word uint64) error {
	return x.insist(func() error {
		b := x.ep.Batch()
		defer b.Release()
		// Repeating it is safe: no other server writes the word.
		b.WriteWord(at, word)
		b.Read(at, 8)
		if err := x.do(node, b.As("tell")); err != nil {
			return err
		}
		return b.Err()
	})
}

// do posts a batch for another server and waits until it is complete, or until the other server is
// no member any more. In a later term nothing of the batch is in flight.
func (x *Exchanger) do(node int, b *rdma.Batch) error {
	if err := x.ep.Post(b); err != nil {
		return err
	}
	for {
		// A server that hangs may not answer for long.
		err := x.ep.Wait(b, rdma.All, time.Millisecond)
		if !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
		// The batch stays in flight to a node that is expelled.
		if x.s.Known.Last().Member(node) == nil || x.s.Tasks.Stopping() {
			return errOver
		}
	}
}

// insist repeats an action at another server until it succeeds, or until the term is over. An
// attempt may fail for want of room at the other server. So cleaners of this server must not wait
// for it: questions are passed in between, since what is sent was copied.
func (x *Exchanger) insist(do func() error) error {
	for {
		if err := x.pass(); err != nil {
			return err
		}
		// It has copies of what it sends.
		err := do()
		switch {
		case err == nil, errors.Is(err, errOver), state.Fatal(err):
			return err
		// The view has changed, though the term has not yet.
		case errors.Is(err, rdma.ErrStale):
			if _, err := x.ep.Join(); err != nil {
				return err
			}
		}
		// Room at the other server comes from its cleaners.
		x.ep.Sleep(state.RetryPause)
	}
}

// pass passes the questions of cleaners. Once the term is over it does not: there may be a gift
// that was not taken, with entries that are not read yet.
func (x *Exchanger) pass() error {
	question := x.s.Quiet.Last()
	if x.s.Known.Last() != x.term || x.s.Tasks.Stopping() {
		return errOver
	}
	x.s.Quiet.Pass(x.s.Opt.ExchangerReader(), question)
	return nil
}
