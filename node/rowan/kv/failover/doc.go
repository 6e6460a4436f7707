// Package failover is the control task of a Rowan-KV server. It follows the configuration, and
// promotes the server's shards when a primary has died (section 4.5). It recovers what an earlier
// server left in the node's memory (section 4.7). In between it has segments digested and committed
// by package digest.
//
// The task starts before all others and owns the node's inbound logs: it alone calls their methods.
package failover
