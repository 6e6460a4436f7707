// Package worker is the task of a Rowan-KV server that serves clients (sections 4.2 and 5.1).
//
// A write is one batch: a WRITE to the worker's own log, with a READ behind it, and an append to
// the log of each backup. It is answered when all of them are acknowledged and the index names its
// entry. A GET READs the entry that the index names, verifies it, and answers from that copy.
//
// A crash of the server leaves a write that is in flight on some of the replicas, and no answer.
// The next term gives it to the others. A worker waits for nothing but the next event: what has
// verbs in flight stays in its list of operations, and is continued when they are complete.
//
// How a record comes to the backups' logs is a replication: rings (Rowan), writes (RWrite-KV,
// Batch-KV, Share-KV) or calls (RPC-KV, section 6.1). In a migration of a shard to this server a
// worker asks the source for keys that the index does not name yet (section 4.6).
package worker
