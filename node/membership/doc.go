// Package membership is a pool's control plane as pure logic over a small linearizable store. It
// has three parts: the durable view, the master's role and the identities of clients (Registry); a
// Store that the memory nodes keep themselves (Quorum, of Acceptors); and a memory node's right to
// serve (ServingLease). It knows no network: fabrics carry the messages.
//
// # What is safe, and why
//
// Everything that must survive a memory node is a record of the Store, and is changed there by one
// compare-and-swap or not at all: a master that cannot write to the registry changes nothing. No
// two records are ever changed together. Where an order matters the comments say which comes first,
// and what a crash between the two leaves.
//
// Quorum is CASPaxos (Rystsov: CASPaxos, Replicated State Machines without logs, 2018): one
// register a key, kept by a majority of the voters. 3 voters survive one crash, 5 survive two, and
// 1 or 2 survive none. A register's state has a version of its own, one more with each Swap, and
// the names of the Swaps that made this version and those before. So the rounds by which readers
// complete what a dead writer left change no version. A writer that got no answer recognizes its
// own state, also when other writers have replaced it since. An acceptor that lost its memory must
// not answer: a node that was started anew belongs to no pool.
//
// The master's role is a record with a lease. The lease is for liveness only: what two masters do
// at once is decided by the view's epoch, and by fencing. Machines' clocks are never compared. An
// owner counts its lease from before it wrote the record. Other processes count from when they have
// seen the record, and wait for an ExpelWait, which makes up for clocks that are wrong by a
// sixteenth either way (17/15 is less than 8/7). The last owner's life is revoked before another
// tenure begins. A master that stalls finds its tenure over, and its verbs refused.
//
// A tenure also ends at once when its owner's identity is given back or forgotten. Identities are
// forgotten when no node has a connection of their process. Such an owner may still be alive, and
// take itself for the master until its lease runs out on its own clock. Its life is revoked before
// another tenure begins, so nothing that it does has an effect.
//
// The store's configuration (rdma.Configs) is one record, so that every crash leaves the old one or
// the new one. The record also says which tenure may replace it. A candidate writes its own number
// there after it has revoked the last owner's life, and before the Swap that begins its tenure.
// What the last owner sends from then on, or has on its way, finds another tenure or another
// version, and changes nothing. A crash between the two leaves a configuration that no tenure may
// replace until the next one, which has the same number, has begun. Of two candidates that claim
// the same number one begins. If the record names a later tenure than a master's, a candidate took
// that master for dead and revoked it, and it gives up.
//
// ServingLease keeps a node that cannot be reached from serving. A node executes verbs only while a
// majority of the voters (itself included, if it is one) has granted it a lease. The lease counts
// from the moment at which the node asked. A master that expels a node marks it on the registry,
// has a majority promise to grant it no lease any more, and waits for an ExpelWait. The two
// majorities have a node in common, which granted before it promised. What it granted was asked for
// earlier still, and is over when the wait is. If the expelled node is the only one in common, it
// has promised itself, and stopped. A node checks its lease before it executes a frame and again
// before it answers. So what it executed after the end of its lease, because its process was
// stopped, is not answered. An answer that leaves late says what was true at a time at which the
// node did serve.
//
// # What it leaves out
//
// The nodes of a pool are fixed when it is made. An expelled node stays an acceptor as long as it
// lives, since membership of the quorum does not change. Nothing is durable beyond the memory of a
// majority, unless the caller stores what acceptors promise: see Acceptor.Promise. Clocks that are
// wrong by more than a sixteenth break leases, and with them the guarantees about expelled nodes,
// but not the registry's records. There is no defense against nodes that lie. A client that may
// only read completes nothing that a dead writer left half done: while a minority of the nodes is
// down as well, it may have to wait until a client that may write reads that record. Look is no
// snapshot of several records. An identity's record is never removed.
package membership
