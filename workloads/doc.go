// Package workloads is YCSB's core workload: generators, value sizes, the loop of one worker and
// what it measures.
//
// A Spec says what to do (Parse reads it from YCSB's properties), a Core is one run of it, and each
// Worker of the run drives a DB of its own. Whatever the workers share (the numbers of inserted
// records) is lock-free, and everything else is the worker's own, so that the harness scales with
// its workers and a seed replays each worker's choices.
//
// The package takes time, sleep and randomness from an Env and starts no tasks, so that the same
// loop runs on the wall's time (package runner) and on virtual time.
package workloads
