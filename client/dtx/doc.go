// Package dtx is a library of transactions over objects in disaggregated memory
// by the protocol of DrTM+H (OSDI 2018), which the rTX paper calls DTX and
// compares rTX with: optimistic concurrency control with a log of values, and
// recovery of dead clients by the pool's master.
//
// README.md has the protocol, the words in memory and their widths, what a crash
// behind each step leaves, and why.
package dtx
