// Package explore tries stores in virtual time: from a seed it draws a plan of a pool, a network,
// what workers do, and what goes wrong, runs it, and judges the run. A plan that fails is made
// smaller, prints as one line, and replays to the byte:
//
//	r := explore.Fuzz(ctx, subject, explore.Search{First: 1, Runs: 1000})
//	if r.Failure != nil {
//		small, _ := subject.Shrink(r.Plan, r.Failure)
//		subject.Replay(small, os.Stdout)
//	}
//
// A run is guilty when the simulation's own rules are broken, an operation fails or waits for
// longer than its timeout, the answers are not linearizable, recovery does not come to an end, or
// the structure is damaged, leaks, or waits for a recovery that is over.
package explore
