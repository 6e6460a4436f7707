package workloads

import "math/rand/v2"

// Core is one run of a Spec, shared by its workers: immutable but for the numbers of inserted
// records. It is safe for concurrent use.
type Core struct {
	*Spec
	mix       [Ops]float64 // cumulated proportions
	scans     lengths
	scrambled Scrambled
	latest    Zipfian
	added     *Acknowledged
}

// NewCore prepares a run. As in YCSB, all records below RecordCount are assumed to be loaded, by
// any process. Records that the run inserts are numbered from RecordCount on.
func NewCore(s *Spec) *Core {
	c := &Core{Spec: s, added: NewAcknowledged(s.RecordCount)}
	sum := 0.0
	for op, share := range [Ops]float64{s.Read, s.Update, s.Insert, s.Scan, s.ReadModifyWrite} {
		sum += share
		c.mix[op] = sum
	}
	c.scans = newLengths(s.ScanLengthDistribution, s.MinScan, s.MaxScan, s.Theta)
	switch s.RequestDistribution {
	case "zipfian":
		c.scrambled = NewScrambled(s.InsertStart, s.InsertCount+s.ExpectedInserts(), s.Theta)
	case "latest":
		c.latest = NewZipfian(s.InsertCount, s.Theta)
	}
	return c
}

// blind reports whether a run chooses among no records: it inserts only.
func (c *Core) blind() bool { return c.Insert > 0 && c.Insert == c.mix[Ops-1] }

// number hands out the number of a record that is to be inserted, if there is one. In a run that is
// blind it counts as inserted at once, so that a client which dies with it holds up no other.
func (c *Core) number() (n int64, ok bool) {
	if n, ok = c.added.Next(); ok && c.blind() {
		c.added.Acknowledge(n)
	}
	return n, ok
}

// inserted says that a record has been inserted.
func (c *Core) inserted(n int64) {
	if !c.blind() {
		c.added.Acknowledge(n)
	}
}

// choose draws the next operation.
func (c *Core) choose(r *rand.Rand) Op {
	u := r.Float64() * c.mix[Ops-1]
	for op := range OpReadModifyWrite {
		if u < c.mix[op] {
			return op
		}
	}
	return OpReadModifyWrite
}
