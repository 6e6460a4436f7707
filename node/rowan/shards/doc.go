// Package shards is the configuration of Rowan-KV (OSDI 2023, sections 4.1, 4.5 to 4.7): which
// servers are members, and which of them has which shard. It has rules by which one configuration
// follows another, and a binary format. It does no I/O: package cm stores configurations and tells
// servers of them.
//
//	c, err := shards.New(nodes, 48, 3)
//	next, err := c.Fail(2)                // server 2 died: backups are promoted, others begin to copy
//	next, err = next.Complete(7, 4)       // server 4 has all of shard 7 by now
//	data := next.Encode()                 // for rdma.Configs
//
// # Replicas
//
// A shard has one primary. Its backups are complete: they have all of the shard that was ever
// acknowledged. Servers that copy the shard are no backups yet. Each write goes to all of them
// before it is acknowledged, copying ones included, from the term on in which they are replicas.
// From that follows what the rules keep:
//
//   - A backup stays complete, and each of them can become the primary at any time. No other replica can: with no
//     backup left the shard is lost, and has no replicas.
//   - While a shard migrates its primary is the target, which has only what was written since and what was copied. The
//     source stays a complete replica, which is written to like a backup, until the target has everything. So when
//     either dies, a complete replica becomes the primary, and nothing is rolled back: the target's acknowledged writes
//     are on all of them.
//   - Replicas are as many as the pool was made for, or as there are members, and one more while a shard moves.
//
// A configuration is a value: rules return a new one, of a higher term, which is not committed.
package shards
