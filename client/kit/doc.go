// Package kit is what the clients of every store need. This page says how a new store uses it;
// register_test.go has one, which survives the deaths of nodes and clients.
//
// Its worker joins the pool's view with Join. With Follow it is told each view that it joins from
// then on (applyView in the stores here). Verbs that were posted in an earlier view fail with
// rdma.ErrStale until the worker joins again, and never land after the view has changed. Under a
// busy view a master makes replicas equal, so no client may change them: a write first waits, by
// AwaitIdle. A store that needs only majorities when nodes die (swarm) does not wait for a master:
// its views are busy while memory is swept, and R1 to R4 (member.go) say what a worker owns then.
//
// Its placement follows from the view alone, by Place. So the master need not publish where
// replicas lie, and all workers of one epoch agree. Addresses are computed from the placement, and
// never stored. The master's half is a cluster.Recoverer: Mend makes replicas equal, Restore copies
// what a node held to a spare, at the same place (IndexOn), and Recover completes or undoes what a
// dead client left.
//
// Its identity, rdma.Endpoint.Client, is reused after its holder has left or was recovered. Numbers
// that must not be used twice (of operations, tombstones, timestamps) are counted above the
// identity's Ceiling: see Numbers.
//
// It waits by Retry, with a formula for the pause: Doubling, Spread, or its own. A worker draws
// only from its endpoint's generator, and equally often in each run with the same seed; otherwise
// the seed would not replay the run.
//
// An operation ends in an answer or in an error. If a write fails after its first verb, it is not
// known whether it took effect: it is Unresolved. In the next idle view nothing of it is in flight
// and all replicas are equal: what they hold is the answer. Without another view the worker waits
// until the batch is finished, and completes its own operation as a master would. If the outcome is
// not known when the operation's time is over, the operation returns client.ErrUncertain, and is
// kept until the outcome is known: others may wait for what it holds.
//
// It is registered by one file in client/stores with its Kind: Size, Format, Open, Check and Usage
// are required; Fill, Outlives, Recoverer and Steps are expected; its options are declared there.
// Format writes the pool's header (node.WriteHeader), and the store's memory begins behind it
// (node.HeaderBytes). A worker reads the header by ReadHeader and Expect. README's table of
// stores, and STORES in the Makefile and in .ci/rxe/prove, list every store.
// workloads/check/storetest and farkv sim fuzz test it.
//
// Terms that the stores share: applyView, awaitIdleView, placement (originals: when the pool was
// made), ceiling, unresolved, retry. A store adds its layout, its verbs, and the proof that they
// make a linearizable register of each key.
package kit
