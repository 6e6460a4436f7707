// Package kv is what the servers of Rowan-KV (OSDI 2023, sections 4 and 5), their clients and the
// tools that inspect a pool agree upon: the options of a pool, requests and answers, the records in
// logs, and the words in each server's memory. Package server is the server; README.md says what it
// relies on, and where it departs from the paper.
package kv
