// Package consul keeps a pool's control plane in Consul: the pool's record (which fabric, which
// nodes), its registry (the durable view, the master's role, the clients' identities), and the
// nodes and clients that are alive, for pools with the address consul:HOST:PORT/POOL. FUSEE (5) and
// Rowan-KV (4.4) leave the same things to a coordination service.
//
// In Consul's KV, under farkv/POOL/:
//
//	record             the pool's Record, written once by CAS; without it there is no such pool
//	registry/ID/KEY    a record of the registry of the pool with that ID: view, master, ...
//
// The ID keeps pools of one name apart. Two processes that make a pool at once build on different
// registries, and the CAS of the record decides between them. A write of a client of a pool that
// was removed never lands on its successor's registry. Live memory nodes and clients are services,
// farkv-node and farkv-client, with a TTL check each.
//
// # What is safe, and why
//
// Consul holds what must not be lost or decided twice. No operation of a client asks it for
// anything. Reads and writes of records are linearizable: writes are CAS by ModifyIndex through
// Raft, and reads are consistent, which the leader answers only after a majority of servers has
// confirmed that it leads.
//
// If Consul is unreachable or partitioned, each call ends within Timeout in an error that wraps
// membership.ErrUnreachable. Calls of an operator's command may take longer: see Patience. A master
// that cannot write to Consul changes nothing: no epoch begins, no node is expelled, and no client
// is declared dead. So a side of a partition without a majority of Consul's servers keeps its view.
// Operations go on in it, since memory nodes hold leases from each other, not from Consul. What
// waits is what needs a change: replication after a failure, joining, and another master.
//
// A write that ended in an error may land later, when the agent recovers. It carries the version
// that it replaces, and lands only if the record was not changed since. Readers find it like any
// other write. So nothing depends on the result being known.
//
// Clocks may drift: no time stamp of one machine is compared with another machine's clock. A
// candidate for the master's role measures, on its own clock, for how long a record's version has
// not changed, waits a little longer than the lease (see membership.ExpelWait), and takes over by
// CAS on that version. If its clock is faster than that allows, it replaces a master that is alive:
// the loser's next CAS fails, and the loser is fenced off before its successor acts. That costs
// availability and nothing else. TTL checks are timed by the agent. They serve operators and the
// discovery of nodes, and decide nothing.
//
// A master that is stopped for long does not know that it was replaced. It need not know: each of
// its changes is a CAS on the version that it knew, and its verbs carry an epoch that the memory
// nodes refuse by then (see rdma.Control.Fence). When it goes on both fail.
//
// A Mirror is a cached record, which may be stale. It may be used to put a decision off, never to
// make one: see Mirror.
//
// # What it leaves out
//
// Consul's sessions and locks: the shortest session lasts 10 s, so leases are renewed by CAS
// instead. A Consul that lost its state, or was restored from a snapshot, has records with lower
// versions than before. A pool cannot notice that, and has to be made again.
package consul
