// Package board is a pool's control plane as pure logic over a small linearizable store: the
// durable view, the master's role and the identities of clients (Board); a Store that the memory
// nodes keep themselves (Quorum, of Acceptors); and a memory node's right to serve (Guard). It
// knows no network: fabrics bring messages from one to the other.
//
// # What is safe, and why
//
// Everything that must survive a memory node is a record of the Store, and is changed there by one
// compare-and-swap or not at all: a master that cannot write to the board changes nothing. No two
// records are ever changed together; where an order matters the text says which comes first, and
// what a crash between the two leaves.
//
// Quorum is CASPaxos (Rystsov: CASPaxos, Replicated State Machines without logs, 2018): one
// register a key, kept by a majority of the nodes that have a voice. 3 of them survive one crash, 5
// two, and 1 or 2 none. A register's state carries a version of its own, one more with each Swap,
// and the names of the Swaps that made it and the ones before. So the rounds by which readers
// complete what a dead writer left change no version, and a writer that was not answered knows its
// own state again, also when others have replaced it since. An acceptor that lost its memory must
// not answer: a node that was started anew belongs to no pool.
//
// The master's role is a record with a lease, for liveness: what two masters do at once is decided
// by the view's epoch, and by fencing. Machines' clocks are never compared. An owner counts its
// lease from before it wrote the record, and others from when they have seen it; they wait an
// ExpelWait, which makes up for clocks that run apart by a sixteenth either way (17/15 is less than
// 8/7). The last owner's life is revoked before another begins. A master that stalls finds its
// tenure over, and its verbs refused.
//
// A tenure also ends at once when its owner's identity is given back or forgotten, which happens to
// those whose process no node has a connection of. Such an owner may still be alive, and think
// itself master until its lease runs out on its own clock; its life is revoked before another
// begins, so that it can only think.
//
// The store's configuration (rdma.Configs) is one record, so that whatever crashes, it is the old
// one or the new one. The record also says which tenure may replace it. A candidate writes its own
// there when the last owner's life was revoked, and before the Swap that begins its tenure: what
// the last owner sends from then on, or has on its way, finds another tenure, or another version,
// and changes nothing. A crash between the two leaves a configuration that no living tenure may
// replace, and the next candidate's. Of two candidates that claim the same number one begins. A
// master whose tenure the record no longer names was revoked by a candidate that took it for dead,
// and gives up.
//
// Guard keeps a node that cannot be reached from serving. A node executes verbs only while a
// majority of the nodes with a voice (itself included, if it has one) has granted it a lease, and
// the lease counts from the moment it asked. A master that expels a node marks it on the board, has
// a majority promise to grant it nothing any more, and waits an ExpelWait. The majorities meet in a
// node that granted before it promised; what it granted was asked for earlier still, and is over
// when the wait is. If they meet in the expelled node alone, it has promised itself, and stopped. A
// node looks before it executes a frame and again before it answers: what it executed after its
// lease ended, because it stood still, is not answered. An answer that leaves late says what was
// true at a time at which the node did serve.
//
// # What it leaves out
//
// The nodes of a pool are fixed when it is made; an expelled one stays an acceptor as long as it
// lives, since membership of the quorum does not change. Nothing is durable beyond the memory of a
// majority, unless the caller keeps what acceptors promise: see Acceptor.Promise. Clocks that run
// apart by more than a sixteenth break leases, and with them what is said of expelled nodes, but
// not the board's records. Nodes that lie are not defended against. A client that may only read
// completes nothing that a dead writer left half done: while a minority of the nodes is down as
// well, it may have to wait until a client that may write looks at that record. List is no snapshot
// of several records. An identity's record is never removed.
package board
