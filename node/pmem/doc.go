// Package pmem is persistent memory: what modules count, and a model of them.
//
// IPMCTL reads what the modules of this machine count: requests of 64 bytes that they served, and
// reads and writes of their media. The quotient of written bytes is the device-level write
// amplification (DLWA; Rowan 2.2). Device counts the same for modules that are not there. The
// fabric sim has nodes with such modules, and cuts their power.
//
// Region is memory that outlives its process, or the machine: a mapped file, or a DAX device, with
// a Table of records.
package pmem
