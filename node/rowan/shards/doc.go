// Package shards is the configuration of Rowan-KV (OSDI 2023, sections 4.1, 4.5 to 4.7): which
// servers are members, and which of them have which shards. It has the rules by which one
// configuration follows another, and a binary form. It does no I/O: package cm stores
// configurations and tells servers about them.
//
//	c, err := shards.New(nodes, 48, 3)
//	next, err := c.Fail(2)                // server 2 died: backups are promoted, others copy
//	next, err = next.Complete(7, 4)       // server 4 has all of shard 7 by now
//	data := next.Encode()                 // for rdma.Configs
//
// # Replicas
//
// A shard has one primary. Its backups are complete: they have each pair of the shard that was ever
// acknowledged. Servers that copy the shard are not complete yet. Each write goes to all replicas
// before it is acknowledged, from the term on in which they are replicas. The rules keep three
// invariants:
//
//   - A backup stays complete, and may become the primary at any time. No other replica may: if no
//     backup is left the shard is lost, and has no replicas.
//   - While a shard migrates, its primary is the target, which has only what was written since and
//     what was copied. The source stays a complete replica, and is written to like a backup, until
//     the target has everything. So when either dies, a complete replica becomes the primary, and
//     nothing is rolled back: the target's acknowledged writes are on all of them.
//   - A shard has as many replicas as the pool was made for, or as there are members if these are
//     fewer, and one more while it moves.
//
// A configuration is a value. Rules return a new one, of a higher term, which is not committed.
package shards
