// Package cm is the configuration manager of Rowan-KV (OSDI 2023, 4.5): it stores configurations,
// tells servers about them, and commits them. It has two ends. The Manager runs as the recoverer of
// the pool's master. Each server has a Server in its control task.
//
//	cluster.Keep(ep, f, cm.NewRecoverer(f, o), ...) // a candidate
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
// The configuration lies in the pool's registers (rdma.Configs), which only the master replaces. It
// is read from nowhere else: messages just say which term is there. So a message that is late,
// comes twice, or is of a deposed master does no harm.
//
//  1. The manager stores a configuration of the next term, which is not committed. Each member
//     reads it and stops serving in earlier terms. It answers once nothing is under way in them.
//  2. When all members have answered, the manager stores the same configuration as committed. A
//     server that has read that serves its shards.
//
// Only servers of nodes that the view calls gone leave the members. By then their leases are over,
// and their verbs were fenced off: see cluster.Attendant. So when a term is committed no server
// serves in an earlier one: members have answered, and the others are gone. A manager that dies at
// any point leaves one configuration or the other in the registers, and its successor goes on from
// that in the same way.
//
// # Lost and late messages
//
// The manager asks all members in each tick, and takes from their answers what they report: copies
// that are complete, migrations that have ended, loads. A server reads the registers without being
// asked when a client knows a higher term, and while it waits for a commit. So it makes progress
// without a manager.
//
// # What it relies on
//
// A server that is restarted beside a node with its memory says so (Server.Restart), and the
// manager begins another term: see shards.Config.ColdStart. Nothing is served in that term: members
// gather what any of them has, and report digests of their replicas. The manager compares these,
// and begins the term in which they serve. A replica that differs was damaged in memory: it is
// copied anew. So is a replica in which a server reports a damaged entry, as long as another one is
// complete. A node that the pool went on without returns with a new incarnation. A server that
// answers no question for long counts as hung, and one that ends by itself says so: their nodes are
// expelled, though they answer READs.
package cm
