// Package consul keeps a pool's control plane with Consul: the pool's record (which fabric, which
// nodes), its board (the durable view, the master's role, the clients' identities) and the nodes
// and clients that are alive, for pools with the address consul:HOST:PORT/POOL. FUSEE (5) and
// Rowan-KV (4.4) leave the same things to a coordination service.
//
// In Consul's KV, under farkv/POOL/:
//
//	record          the pool's Record, written once by CAS; without it there is no such pool
//	board/ID/KEY    the board's records of the pool with that ID: view, master, clients, and the store's configuration
//
// The ID keeps pools of one name apart: two that make a pool at once build on boards of their own
// and the record's CAS decides between them, and what a client of a pool that was removed still
// writes never lands on its successor's board. Memory nodes and others that are alive are services,
// farkv-node and farkv-client, with a TTL check each.
//
// # What is safe, and why
//
// Consul holds what must not be lost or decided twice; it is asked for nothing in an operation's
// way. Reads and writes of records are linearizable: writes are CAS by ModifyIndex through Raft,
// reads are consistent ones, which the leader answers only after a majority of servers confirmed
// that it leads.
//
// Consul unreachable or partitioned: every call ends within Timeout in an error wrapping
// board.ErrUnreachable; an operator's command, which is patient, gives its calls longer: see
// Patience. A master that cannot write to Consul changes nothing: no epoch begins, no node is
// expelled, no client declared dead, so a side of a partition without a majority of Consul's
// servers keeps its view. Operations go on in it, since memory nodes hold leases of each other, not
// of Consul. What waits is what needs a change: re-replication, joining, and another master.
//
// A write that ended in an error may land later, when the agent goes on. It carries the version
// that it replaces, and lands only if the record was not changed since; readers find it as they
// find any other write. So nothing depends on having been told the result.
//
// Clocks that drift: no time stamp of one machine is compared with another's clock. A candidate for
// the master's role measures, on its own clock, for how long it saw a record's version unchanged,
// waits a little longer than the lease (see board.ExpelWait), and takes over by CAS on that
// version. A clock that is faster than that allows gets a master replaced that is alive: the
// loser's next CAS fails, and it is fenced off before its successor acts. That costs availability
// and nothing else. TTL checks are timed by the agent and are for operators and for finding nodes;
// nothing is decided by them.
//
// A master that stalls while it holds the role (a long pause of its process, a stopped machine)
// does not know that it was replaced. It does not have to: every change is a CAS on the version it
// knew, and its verbs carry an epoch that the memory nodes have been told to refuse (see
// rdma.Control.Fence). When it goes on, both fail.
//
// A Mirror is a cached record, possibly stale. It may be used to put a decision off and never to
// take one: see Mirror.
//
// # What it leaves out
//
// Consul's sessions and locks, the shortest of which lasts 10 s: leases are renewed by CAS instead.
// A Consul that lost its state, or was set back to a snapshot, has records whose versions went
// back; a pool cannot tell, and has to be made again.
package consul
