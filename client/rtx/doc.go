// Package rtx is a library of repairable transactions over objects in
// disaggregated memory ("Transactional Indexes on (RDMA or CXL-based)
// Disaggregated Memory with Repairable Transaction"). Any client can finish a
// transaction that a dead client has left.
//
// README.md has the protocol, the words in memory and their widths, what a crash
// behind each step leaves, and why.
package rtx
