package rowan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
)

// tries bounds how often a walk through a pool is begun that changes meanwhile.
const tries = 5

// Check reads the logs of all servers. It compares the replicas of each shard: they must have the
// same newest record of each key. Then it asks primaries for keys: they must answer with those
// records. A record that is not settled may be missing on some replicas: its write is under way, or
// its client was told that it is uncertain. Members of which the nodes are dead, and primaries that
// do not answer, leave a part unchecked; the report names it.
//
// What cleaners move during the walk may look like damage. Then the walk is begun again.
func Check(f rdma.Fabric) (r client.Report, err error) {
	for range tries {
		c := checker{}
		if err := c.walk(f); err != nil {
			return r, fmt.Errorf("check: %w", err)
		}
		r = c.r
		if len(r.Damage) == 0 || slices.Equal(c.before, c.after) {
			break
		}
	}
	return r, nil
}

// checker is the state of one walk.
type checker struct {
	ep     rdma.Endpoint
	l      *layout
	config *shards.Config
	// Damage, what was not seen, and counts. A walk only adds to it.
	r     client.Report
	nodes []contents

	// By node: the uses of segments before and after the walk. If they are equal nothing was moved
	// meanwhile.
	before, after []uint64
	// The sum over all nodes.
	// Of the states of segments, as they were before the walk.
	sum rowan.Counts
	// Records that were read.
	records uint64
	// Records that are under way.
	under uint64
	// Answers of primaries, and primaries that do not answer.
	answers uint64
	silent  uint64
	// Keys for which primaries are asked.
	keys []asked
	// By shard: how many of these it has.
	chosen []int
	// Pairs, and their bytes.
	live, bytes uint64
}

// contents is the content of a node's logs.
type contents struct {
	alive bool
	// Why it is not alive.
	why error
	// The newest record of each key, by hash.
	items []item
	// By shard, the CommitVers that its server had published before the walk.
	commit []uint64
	// By node, the terms in which servers had given this one what they had, before the walk.
	gave []uint64
	// Entries with a wrong checksum; nil: they were not looked for.
	torn []torn
}

// torn is a record with a wrong checksum.
type torn struct {
	shard   int
	term    uint32
	version uint64
	at      rdma.Addr
}

// item is the summary of a record.
type item struct {
	hash    uint64 // of the key
	version uint64
	// Two replicas are equal if these are, up to collisions of the hash.
	value   uint64 // hash of the value
	term    uint32
	length  int32 // of the key and the value together
	deleted bool
}

// newer orders the items of a key, the newest first.
func newer(a, b item) int {
	return cmp.Or(cmp.Compare(b.term, a.term), cmp.Compare(b.version, a.version))
}

// asked is a key for which its primary is asked.
type asked struct {
	key   string
	hash  uint64
	shard int
}

// mostAsked bounds these keys, since each takes a round trip. Each shard has its share.
const mostAsked = 10_000

// keysOf returns the node that names the keys for which a shard's primary is asked: the last live
// replica that is complete, which is a backup if there is one.
func (c *checker) keysOf(shard int) int {
	// The primary is the first one.
	all := c.config.Shards[shard].Complete()
	for _, node := range slices.Backward(all) {
		if c.nodes[node].alive {
			return node
		}
	}
	return shards.None
}

func (c *checker) walk(f rdma.Fabric) error {
	ep, l, _, err := client.Look(f, "read the pool", readLayout)
	if err != nil {
		return err
	}
	defer ep.Close()
	c.ep, c.l, c.nodes = ep, l, make([]contents, l.nodes)
	if c.config, err = readConfig(f); err != nil {
		return err
	}
	if n := len(c.config.Shards); n != l.servers.Shards {
		c.r.Damaged("the configuration has %d shards, and the pool %d", n, l.servers.Shards)
		return nil
	}
	// A node that has died by now, or dies meanwhile, is left out.
	for n := range c.nodes { // before any log is read, so that words are not newer than logs
		if err := c.begin(n); err != nil {
			return err
		}
	}
	c.chosen = make([]int, l.servers.Shards)
	for n := range c.nodes {
		// Behind all words: what they cover must be found.
		if err := c.collect(n); err != nil {
			return err
		}
	}
	// From here on it is known which replicas can be compared.
	c.unread()
	// Looked up by hash only, so its order does not matter.
	wanted := map[uint64]item{}
	// Items are sorted by hash, and the hashes of a shard follow each other.
	for shard := range c.config.Shards {
		c.compare(shard, wanted)
	}
	// Primaries are asked after the logs were read: their answers must not be older than those.
	if err := c.ask(f, wanted); err != nil {
		return err
	}
	for n := range c.nodes {
		if t, err := kv.ReadTable(ep, l.servers, l.promises(), n); err == nil {
			c.after = append(c.after, t.Pushes())
		}
	}
	c.tell()
	return nil
}

// begin reads what a node's server has published, and its table. Damage there is reported.
func (c *checker) begin(node int) error {
	// The table comes first: it says where entries are.
	t, err := kv.ReadTable(c.ep, c.l.servers, c.l.promises(), node)
	switch {
	case errors.Is(err, rdma.ErrNodeDown):
		c.nodes[node].why = rdma.ErrNodeDown
		return nil
	// The rest of the pool is checked all the same.
	case errors.Is(err, rowan.ErrDamaged):
		c.nodes[node].why = err
		c.r.Damaged("node %d: %v", node, err)
		return nil
	case err != nil:
		return err
	}
	// It counts uses of segments, so that it changes whenever one begins to be filled.
	// Compared with the same count after the walk.
	c.before = append(c.before, t.Pushes())
	c.sum.Add(t.Count())
	n := &c.nodes[node]
	if n.commit, err = kv.CommitVers(c.ep, c.l.servers, node); errors.Is(err, rowan.ErrDamaged) {
		n.why = err
		c.r.Damaged("node %d: %v", node, err)
		return nil
	}
	if err == nil {
		n.gave, err = kv.Gave(c.ep, c.l.servers, node)
	}
	n.alive = err == nil
	return err
}

// collect reads a node's logs, and keeps the newest record of each key.
func (c *checker) collect(node int) error {
	n := &c.nodes[node]
	if !n.alive {
		return nil
	}
	err := kv.Collect(c.ep, c.l.servers, c.l.promises(), node, func(r *kv.Collected) {
		c.records++
		// Items have hashes instead of keys, so that a walk of a large pool fits into memory. Keys
		// with the same hash are taken for one.
		hash := kv.Hash(r.Key)
		if shard := c.config.Find(hash); shard != r.Shard {
			c.r.Damaged("node %d: a record of %.40q is of shard %d, and the key of %d", node, r.Key, r.Shard, shard)
			return
		}
		// The record is valid until the callback returns, so nothing of it is kept.
		n.items = append(n.items, item{
			hash: hash, version: r.Version, value: xxhash.Sum64(r.Value), term: r.Term, deleted: r.Deleted,
			length: int32(len(r.Key) + len(r.Value)),
		})
		// Keys are taken from a backup, so that an answer of the primary is compared with what
		// another server has.
		if c.chosen[r.Shard] < max(mostAsked/len(c.chosen), 1) && c.keysOf(r.Shard) == node {
			c.chosen[r.Shard]++
			c.keys = append(c.keys, asked{string(r.Key), hash, r.Shard})
		}
	})
	if errors.Is(err, rowan.ErrDamaged) {
		c.r.Damaged("node %d: %v", node, err)
		err = nil
	}
	// Of each key the newest comes first.
	slices.SortFunc(n.items, func(a, b item) int { return cmp.Or(cmp.Compare(a.hash, b.hash), newer(a, b)) })
	// Copies by cleaners are equal, so that one of them is enough.
	n.items = slices.CompactFunc(n.items, func(a, b item) bool {
		if a.hash == b.hash && newer(a, b) == 0 && a != b {
			c.r.Damaged("node %d has two records of hash %#x with term %d and version %d, which differ", node, a.hash,
				a.term, a.version)
		}
		return a.hash == b.hash
	})
	return err
}

// unread reports which members' logs were not read, and what is not compared because of that.
func (c *checker) unread() {
	for _, m := range c.config.Members {
		if c.nodes[m.Node].alive {
			continue
		}
		// Without the primary's CommitVer nothing of its shards is known to be settled.
		primary, backup := c.primaryOf(m.Node), 0
		for i := range c.config.Shards {
			if s := &c.config.Shards[i]; s.Primary != m.Node && s.Has(m.Node) {
				backup++
			}
		}
		// The report says so, for a check that finds nothing must not be taken for more than it is.
		c.r.Unseen("node %d: replicas of the %s of which its server is the primary are not compared, "+
			"and its own of %d others are not read: %v", m.Node, plural(primary), backup, c.nodes[m.Node].why)
	}
}

// primaryOf returns the number of shards of which a node's server is the primary.
func (c *checker) primaryOf(node int) (n int) {
	for _, s := range c.config.Shards {
		if s.Primary == node {
			n++
		}
	}
	return n
}

func plural(shards int) string {
	if shards == 1 {
		return "shard"
	}
	return fmt.Sprint(shards, " shards")
}

// compare compares the replicas of a shard, and notes in wanted what each key has. It merges the
// replicas' items by hash.
func (c *checker) compare(shard int, wanted map[uint64]item) {
	// Replicas that copy the shard are not compared.
	s := &c.config.Shards[shard]
	if s.Lost() {
		c.r.Damaged("shard %d is lost", shard)
		return
	}
	first, last := c.config.Range(shard)
	var replicas []int
	var rest [][]item
	for _, node := range s.Complete() {
		if n := &c.nodes[node]; n.alive {
			from, _ := slices.BinarySearchFunc(n.items, first,
				func(i item, h uint64) int { return cmp.Compare(i.hash, h) })
			to, found := slices.BinarySearchFunc(n.items, last,
				func(i item, h uint64) int { return cmp.Compare(i.hash, h) })
			// Range has the last hash, too.
			if found {
				to++
			}
			// The slices alias the items, which stay.
			replicas, rest = append(replicas, node), append(rest, n.items[from:to])
		}
	}
	for {
		newest, ok := item{}, false
		for _, items := range rest { // the lowest hash, and of that the newest
			if len(items) > 0 && (!ok || items[0].hash < newest.hash ||
				items[0].hash == newest.hash && newer(items[0], newest) < 0) {
				newest, ok = items[0], true
			}
		}
		if !ok {
			return
		}
		// Words were read before the logs, so what they cover must be in all of them.
		settled := c.settled(s, shard, newest)
		for i, items := range rest {
			// Replicas drop tombstones at different times.
			has := item{hash: newest.hash, deleted: true} // which is as good as nothing
			if len(items) > 0 && items[0].hash == newest.hash {
				has, rest[i] = items[0], items[1:]
			}
			switch {
			case has == newest || has.deleted && newest.deleted:
			case newer(has, newest) == 0:
				c.r.Damaged("shard %d: node %d has another record than others of hash %#x, term %d, version %d",
					shard, replicas[i], newest.hash, newest.term, newest.version)
			// Its write is under way, or its client was told that it is uncertain: replicas may
			// differ.
			case !settled:
				c.under++
			default:
				// It helps to tell a record that was lost from one that was never there.
				older := "none"
				if has.version > 0 {
					older = fmt.Sprintf("version %d of term %d", has.version, has.term)
				}
				c.r.Damaged("shard %d: node %d lacks version %d of term %d, hash %#x, which all replicas must have: "+
					"it has %s%s", shard, replicas[i], newest.version, newest.term, newest.hash, older,
					c.place(replicas[i], shard, newest))
			}
		}
		// Otherwise the primary may answer with it or with an older one.
		if settled {
			wanted[newest.hash] = newest
		}
		if !newest.deleted {
			c.live, c.bytes = c.live+1, c.bytes+uint64(newest.length)
		}
	}
}

// place returns where the entry is that a node lacks, if it can be found, for a message.
func (c *checker) place(node, shard int, i item) string {
	n := &c.nodes[node]
	// Logs are read once more only if something is missing.
	if n.torn == nil {
		n.torn = []torn{}
		// What a damaged record says is a guess, for the message only.
		err := kv.Torn(c.ep, c.l.servers, c.l.promises(), node, func(r *kv.Collected, at rdma.Addr) {
			n.torn = append(n.torn, torn{r.Shard, r.Term, r.Version, at})
		})
		if err != nil {
			return fmt.Sprintf("; why is not known: %v", err)
		}
	}
	// A record is found by its term and version: its key may be what is damaged.
	for _, t := range n.torn {
		if t.shard == shard && t.term == i.term && t.version == i.version {
			return fmt.Sprintf("; the entry at %s (%s) has a wrong checksum", t.at, c.l.servers.Describe(t.at))
		}
	}
	return ""
}

// settled reports whether a record was on all replicas before the walk began. The CommitVer of the
// configuration's primary covers what that one gave a version to, in the configuration's term. Its
// word may be of a term in which it was the primary before, and says nothing of what another one
// gave since. Records of earlier terms were on all replicas once all members had given what they
// had in this one. A server that begins anew clears these words.
func (c *checker) settled(s *shards.Shard, shard int, i item) bool {
	n := &c.nodes[s.Primary]
	switch term := uint64(i.term); {
	case !n.alive:
		return false // its words were not read
	case term == c.config.Term:
		return i.version <= n.commit[shard]
	default:
		return term < c.config.Term && !slices.ContainsFunc(c.config.Members,
			func(m shards.Member) bool { return n.gave[m.Node] != c.config.Term })
	}
}

// askWithin bounds the wait for a primary. One that does not answer is not asked again.
const askWithin = time.Second

// ask asks primaries for keys and compares their answers with wanted.
func (c *checker) ask(f rdma.Fabric, wanted map[uint64]item) error {
	// The client has an endpoint of its own, since it opens a mailbox.
	ep, err := f.Open("check")
	if err != nil {
		return err
	}
	defer ep.Close()
	// Its timeout bounds how long a primary that does not answer holds the check up.
	s, err := Open(ep, f, c.l.Kind, askWithin)
	if err != nil {
		return err
	}
	// By node.
	silent := make([]error, c.l.nodes)
	for _, k := range c.keys {
		want, ok := wanted[k.hash]
		primary := c.config.Shards[k.shard].Primary
		// Not settled, or its primary is not asked any more.
		if !ok || silent[primary] != nil {
			continue
		}
		// A write since the walk makes the answer differ. Then the walk is begun again, if a
		// segment was pushed.
		value, err := s.Get([]byte(k.key))
		switch {
		case err == nil && (want.deleted || xxhash.Sum64(value) != want.value):
			c.r.Damaged("shard %d: server %d answers with %d bytes for %.40q, of which version %d is in its log",
				k.shard, primary, len(value), k.key, want.version)
		case errors.Is(err, client.ErrNotFound) && !want.deleted:
			c.r.Damaged("shard %d: server %d does not have %.40q, of which version %d is in its log", k.shard, primary,
				k.key, want.version)
		case errors.Is(err, client.ErrDamaged):
			c.r.Damaged("shard %d: server %d says that what it has of %.40q is damaged: %v", k.shard, primary, k.key,
				err)
		case err != nil && !errors.Is(err, client.ErrNotFound):
			// It may be slow, or dead and not expelled yet.
			silent[primary] = err
			c.silent++
			continue
		}
		c.answers++
	}
	// It may be all of them: then only logs were compared.
	for primary, err := range silent {
		if err != nil {
			c.r.Unseen("server %d does not answer: of the %s of which it is the primary only logs are read: %v",
				primary,
				plural(c.primaryOf(primary)), err)
		}
	}
	return s.Close()
}

// tell adds the walk's counts to the report.
func (c *checker) tell() {
	// Counts are from before the walk.
	segments := func(name string, n int) { c.r.Fact(name, uint64(n), uint64(n)*uint64(c.l.SegmentBytes)) }
	c.r.Fact("pairs", c.live, c.bytes)
	c.r.Fact("records in the logs", c.records, 0)
	c.r.Fact("records under way", c.under, 0)
	c.r.Fact("keys that primaries were asked for", c.answers, 0)
	c.r.Fact("primaries that do not answer", c.silent, 0)
	segments("segments free", c.sum.Free)
	segments("segments committed", c.sum.Committed)
	segments("segments neither", c.sum.Ahead+c.sum.Filling+c.sum.Used)
}
