// Package clean collects the garbage of a Rowan-KV server (section 4.4). A cleaner copies the live
// entries of a committed segment to a log of its own and frees the segment. A sweep drops
// tombstones.
//
// The README of package kv says why a dropped tombstone is not missed ("Tombstones").
package clean
