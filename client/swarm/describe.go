package swarm

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Describe returns a function that says what lies at an address of the pool that ep reaches. The
// pool may have any format of this package.
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	l, _, err := readPlan(ep, "")
	if err != nil {
		return nil, fmt.Errorf("describe a pool: %w", err)
	}
	return l.describe, nil
}

// describe is Describe for a pool that is laid out: the parts of a node lie as plan lists them.
func (l *plan) describe(a rdma.Addr) string {
	off := a.Offset()
	switch {
	case off < node.HeaderBytes:
		return "header"
	case off < l.counters:
		return fmt.Sprintf("ceiling of client %d", (off-node.HeaderBytes)/8+1)
	case off < l.retired:
		return fmt.Sprintf("count of objects of region %d", (off-l.counters)/8)
	case off < l.dir.Base:
		return fmt.Sprintf("retirement of object %d.%d",
			(off-l.retired)/l.retiredBytes(), (off-l.retired)%l.retiredBytes()/8)
	case off < l.dir.Base+l.dir.Bytes():
		return l.dir.Describe(a)
	case off < l.index.Base:
		return l.describeObject(a)
	case off < l.values.Base:
		return l.index.Describe("bucket buffer", a)
	}
	return l.values.Describe("value buffer", a)
}

// describeObject names the part of an object that has an address; "": no object has it.
func (l *plan) describeObject(a rdma.Addr) string {
	for region := range l.regions {
		for r, at := range l.regions[region][:l.Replicas] {
			if at.Node() != a.Node() || a.Offset() < at.Offset() ||
				a.Offset() >= at.Offset()+uint64(l.Objects)*l.stride(r) {
				continue
			}
			in := a.Offset() - at.Offset()
			object := fmt.Sprintf("object %d.%d, replica %d", region, in/l.stride(r), r)
			switch part := int(in % l.stride(r)); {
			case l.layout.raw():
				return object
			case part < l.layout.wordsAt():
				return fmt.Sprintf("lock %d of %s", part/8, object)
			case part < l.layout.dataAt():
				return fmt.Sprintf("word %d of %s", (part-l.layout.wordsAt())/8, object)
			default:
				return "value in place of " + object
			}
		}
	}
	return ""
}
