// Package exchange appends to other servers' logs what they may not have: at the beginning of a
// term the records that may not be on all replicas (section 4.5, phase 2), and then all records of
// the shards that others copy (phase 3) or that migrate to them (section 4.6). Behind a cold start
// it also compares the server's replicas with others' (section 4.7).
package exchange
