// Package cm is the configuration manager of Rowan-KV (OSDI 2023, 4.5): it stores configurations,
// tells servers of them, and commits them. It has two ends. A Manager is the mender of the pool's
// master. Each server has a Server in its control task.
//
//	cluster.Keep(ep, f, cm.NewMender(f, o), ...) // a candidate
//
//	s := cm.NewServer(ep, f, node, store)        // beside a node
//	for {
//		r, err := peer.Next(time.Millisecond)
//		...                                  // of procedure Ask:
//		err = s.Handle(r)
//		...
//		err = s.Step()
//	}
//
// # Two steps
//
// The configuration lies in the pool's registers (rdma.Configs), which the master alone replaces.
// That is the only place it is read from: messages just say which term is there, so that one which
// is late, comes twice, or is of a master that was deposed does no harm.
//
//  1. The manager stores a configuration of the next term, which is not committed. Each member reads it and stops to
//     serve in earlier terms. It answers once nothing is under way in them.
//  2. When all members have answered the manager stores the same configuration as committed. A server that has read
//     that serves its shards.
//
// A server that leaves the members is one of a node that the view calls gone. Then its lease is
// over, and verbs of it were fenced off: see cluster.Attendant. So when a term is committed, no
// server serves in an earlier one: members have answered, and the others are gone. A manager that
// dies at any point leaves a configuration in the registers, from which its successor goes on in
// the same way.
//
// # What is lost, or late
//
// The manager asks all members in each tick, and takes from their answers what they have to report:
// copies that are complete, migrations that have ended, loads. A server reads the registers by
// itself when a client knows a higher term, and while it waits for a commit, so that it needs no
// manager to get on.
//
// # What it relies on
//
// A server that is started anew, beside a node that remembers, says so (Server.Restart), and the
// manager begins another term: see shards.Config.ColdStart. In that nothing is served: members
// gather what any of them has, and tell what their replicas have then. The manager compares that,
// and begins the term in which they serve. A replica that differs was damaged in memory: it is
// copied anew. So is one in which a server reports a damaged entry, as long as another one is
// complete. A node that the pool went on without is another one when it comes back. A server that
// answers no question of the manager for long hangs, and one that ends by itself says so: their
// nodes are expelled, though they answer READs.
package cm
