// Package shm is the fabric of memory that every process of one machine maps: one-sided verbs run
// in the caller, on the shared mapping, with no daemon. It is the default fabric, and stands in for
// CXL shared memory. NewMem makes its anonymous twin, a pool that only one process sees.
//
// A pool is one mapping, whether a file backs it or nothing does: a header page, a line of 64 bytes
// for each client, two halves of the store's configuration, and then the memory of each node,
// page-aligned. Whatever a killed process leaves in it is of use to the others: each word of the
// header and of a client's line says by itself what holds.
//
// The mapping, by offset in bytes; stride is a node's registered memory, in whole pages:
//
//	0                     the header: shape, master, view, version of the configuration
//	4096                  a slot of 64 bytes for each client, from client 1 on
//	Geometry.config       two halves of rdma.MaxConfig bytes
//	Geometry.first        node 0: the store's memory, and then that of telemetry
//	  + n * stride        node n
//
// Each client holds a lock of the kernel's on one byte of its slot's place in the file:
// fileLives. The lock is dropped when the last thread of the process has ended. So "the slot is
// in use and its lock is free" means that the client died, and that none of its verbs can land
// any more. What a killed process leaves, and what becomes of it (in a mem: pool, where nothing
// is killed alone, a map takes the place of the locks):
//
//	its slot, in use      Clients lists it as dead, until Forget frees it
//	an odd busy word      drain does not wait once the lock is free; the next life evens it
//	a verb, half done     a WRITE of which some words are old: the store has to detect that
//	the word of a master  it counts until its lease is over; then the next master replaces it
//	a change of a member  announced in the view's word, and carried out by any that looks
//	a configuration       the old version, or the new one: the word changes last
//	a pool being made     nothing: its file has no name yet
//
// Messages and rings are for mem: pools alone, of which all workers are goroutines of one
// process.
//
// Fabric.mu is locked before the locks of lives. boxes and rings are locked to look a mailbox or
// ring up, and are free when its own lock is taken.
package shm
