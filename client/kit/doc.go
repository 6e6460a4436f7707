// Package kit is what every store's clients need, once. A new store joins as follows;
// register_test.go has one, which survives the deaths of nodes and clients.
//
// Its worker joins the pool's view by Join, and has Follow tell it each view that it joins from
// then on (applyView in the stores here). Verbs that were posted in an earlier view fail with
// rdma.ErrStale until the worker joins again, and never land behind a change of the view. Under a
// busy view a master makes replicas equal, so no client changes them: a write waits first, by
// AwaitIdle. A store whose clients make up for dead nodes by majorities (swarm) waits for no
// master: its views are busy while memory is swept, and R1 to R4 (member.go) say what a worker owns
// then.
//
// Its placement follows from the view alone, by Place: the master need not tell where replicas lie,
// and all workers of one epoch agree. Addresses are computed from it, and never stored. The
// master's half is a cluster.Mender: Mend makes replicas equal, Restore copies what a node held to
// a spare, at the same place (IndexOn), and Recover ends what a dead client left.
//
// Its identity, rdma.Endpoint.Client, is used again once its holder left or was recovered. What
// must not come back, numbers of operations, tombstones, timestamps, is counted above the
// identity's Ceiling: see Numbers.
//
// It waits by Retry, whose formula says for how long: Doubling, Spread, or its own. A worker draws
// from its endpoint's generator only, and as often in each run, or the same seed would be another
// run.
//
// An operation ends in an answer, or in an error. Of a write that fails behind its first verb it is
// not known whether it took effect: it is Unresolved. In the next idle view nothing of it is in
// flight, and all replicas are equal: what they hold is the answer. Without another view the worker
// waits until the batch is finished, and ends its own operation as a master would. What is not
// known when the operation's time is over answers client.ErrUncertain, and is kept until it is:
// others may wait for what it holds.
//
// It is made known by one file in client/stores, which registers its Kind: Size, Format, Open,
// Check and Usage are required, Fill, Outlives, Mender and Steps are what its users expect, and its
// options are declared there. Format writes the pool's header (node.WriteHeader), behind which its
// memory begins (node.HeaderBytes); a worker reads it by node.ReadHeader and Expect. README's table
// of stores, and the STORES of the Makefile and of .ci/rxe/prove, name every store.
// workloads/check/storetest, and farkv sim fuzz, judge it.
//
// Words that the stores share: applyView, awaitIdleView, placement (originals: when the pool was
// made), ceiling, unresolved, retry. What is a store's own is its layout, its verbs, and the proof
// that they make a linearizable register of each key.
package kit
