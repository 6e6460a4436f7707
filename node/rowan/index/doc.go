// Package index is the DRAM index of a shard (Rowan, OSDI 2023, section 5.3): where in the logs of
// a server the newest entry of each key lies. An item has a tag of 16 bits of the key's hash, and
// an address of 48. Items of one bucket of the hash form a chain of cache lines of seven.
//
// An index does not know keys. The caller reads the entries that Lookup names, which takes verbs,
// and compares. No lock is held meanwhile, so a change says what it relies on, and is refused when
// that is so no longer:
//
//	seen := x.Lookup(hash, room[:0])
//	...                                  // READ the entries
//	ok := x.Replace(hash, old, at)       // one of them, at old, is of the key, and older
//	ok := x.Insert(hash, at, seen)       // none is of the key
//	...                                  // not ok: look up again
//
// Update is this loop, for tasks that may wait: digests, migration. A worker that goes on with
// others keeps seen.
//
// # One item a key
//
// Insert is refused while the chain has an item of the tag that is not among seen. So of two
// inserts of one key at once the second one is refused, looks up again, and finds the first one's
// item: a key has one item at most, whichever tasks insert, workers and digests of one shard
// included. A deleted key has one, too: that of the DEL, until Remove.
//
// A change is refused only because another one of the same tag and chain was made. So some task
// always goes on.
//
// # What the caller promises
//
// The memory of an entry that an index named is not used again before each task that may have its
// address, from Lookup or Chain, has passed a quiet point: it has changed the index, has read what
// it copies, or has given up. Otherwise another entry may lie at an address that was compared.
//
// A tombstone is removed when nothing older of its key is left that a digest, a promotion or a
// migration may bring.
//
// # Traversal
//
// Chain returns all items of a chain at one instant. An item never changes its chain, and has its
// place in it until it is removed: Replace leaves no instant without it. So a loop over all chains
// sees each key that has an item all the while, once, whatever is moved, inserted or removed
// meanwhile. Of keys that are inserted meanwhile it sees some: the one that copies a shard has new
// entries sent to the copy before it begins. The address may be that of an older entry by the time
// that it is read, so versions decide.
//
// # Size
//
// The number of chains is fixed, as in the paper: an item does not say where it would lie among
// more. Longer chains cost cache misses: node/rowan/README.md has figures.
package index
