// Package kv is the server of Rowan-KV (OSDI 2023, sections 4 and 5), one beside each memory node:
//
//	s, err := kv.Open(ep, o, node, config)
//	err = s.Run(ep) // until s.Stop; workers and cleaners are tasks of its own
//
// A write is one batch: a WRITE to the log of the worker, with a READ behind it, and appends to the
// logs of all backups (package rowan). It is answered when all of them are acknowledged and the
// index (package index) names its entry. A GET reads the entry that the index names, verifies it,
// and answers from that copy. README.md says what is relied on, and where it departs from the
// paper. Package client/rowan is the client.
package kv
