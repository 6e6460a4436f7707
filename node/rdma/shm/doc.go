// Package shm is the fabric of memory that every process of one machine maps: one-sided verbs run
// in the caller, on the shared mapping, with no daemon. It is the default fabric, and stands in for
// CXL shared memory. NewMem makes its anonymous twin, a pool that only one process sees.
//
// A pool is one mapping, whether a file backs it or nothing does: a header page, a line of 64 bytes
// for each client, two halves of the store's configuration, and then the memory of each node,
// page-aligned. Whatever a killed process leaves in it is of use to the others: each word of the
// header and of a client's line says by itself what holds.
package shm
