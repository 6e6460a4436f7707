// Package rtx is a library of repairable transactions over objects in disaggregated memory
// ("Transactional Indexes on (RDMA or CXL-based) Disaggregated Memory with Repairable
// Transaction"): any client can finish what another one has left.
//
// README.md has the protocol, its words and their widths, what a crash leaves behind each step, and
// why.
package rtx
