// Package state is what the tasks of a Rowan-KV server share.
//
//	Shard     a replica: its index, versions and CommitVer (section 4.4)
//	Space     the life of the node's segments, and what is live in each (section 4.4)
//	Quiet     when nothing reads a segment any more, so that it can be freed
//	Known     the terms and the views that the server knows (section 4.5)
//	Tasks     the tasks themselves: all end when one of them fails
//	Handover  what the control task and the exchanger hand over to each other
//
// Each of these may be used by all tasks: they are atomic words, or are guarded by a lock that is
// held over no verb, wait or sleep. The package imports none of the tasks' packages.
package state
