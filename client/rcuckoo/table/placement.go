package table

import (
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Placement is where the copies of shards lie. All fields are indexed by shard.
type Placement struct {
	// Originals are the copies of a new pool. They never change.
	Originals [][]node.Replica
	// Leads are the leaders in the view that ApplyView was called with last. All addresses of a
	// shard are in its leader's memory, unless they name a copy.
	Leads []node.Replica
	// Copies are those that are left in that view. The first is the leader.
	Copies [][]node.Replica
	// Orphan: no copy is left. The leader is on a node that is down then.
	Orphan []bool
}

// placesEach is how many copies of shards a node has, at most.
func (p *Params) placesEach(nodes int) int {
	data := nodes - p.Spares
	return (p.Shards + data - 1) / data * max(p.Replicas, 1)
}

// placeOriginals places all copies as in a new pool: copy k of a shard on the k-th data node
// after its leader's. So no node has two copies of a shard, and each has as many leaders as any
// other, or one less.
func (l *Layout) placeOriginals() {
	l.Originals, l.Leads = make([][]node.Replica, l.Shards), make([]node.Replica, l.Shards)
	l.Copies, l.Orphan = make([][]node.Replica, l.Shards), make([]bool, l.Shards)
	all, data := make([]node.Replica, l.Shards*l.Replicas), l.Nodes-l.Spares
	for shard := range l.Originals {
		l.Originals[shard], all = all[:l.Replicas:l.Replicas], all[l.Replicas:]
		for k := range l.Originals[shard] {
			l.Originals[shard][k] = node.Replica{
				Node: (shard + k) % data, Index: k*(l.PerNode/l.Replicas) + shard/data}
		}
	}
	l.ApplyView(&rdma.View{})
}

// ApplyView places all copies as a view says.
func (l *Layout) ApplyView(v *rdma.View) {
	for shard, o := range l.Originals {
		l.Copies[shard], l.Orphan[shard] = kit.Replicas(v, o)
		l.Leads[shard] = l.Copies[shard][0]
	}
}

// Backups are a shard's copies but for its leader.
func (l *Layout) Backups(shard int) []node.Replica { return l.Copies[shard][1:] }

// RoleAt is where the role of the copy lies that leads in the view.
func (l *Layout) RoleAt(shard int) rdma.Addr { return l.At(l.Areas.Roles, shard, 0) }

// Leading is the role of a copy that has all that a leader has: it leads, or led until its node
// died. 0: the copy is a backup.
const Leading = 1
