package shards

import (
	"errors"
	"fmt"
)

// Errors that callers branch on when a pool starts of which all servers have stopped.
var (
	// ErrOlder is wrapped when a server was a member in a later term than the configuration's:
	// there is a later configuration.
	ErrOlder = errors.New("the configuration is older than what a server has")
	// ErrMissing is wrapped when shards would be lost without servers that are not there yet.
	ErrMissing = errors.New("no complete replica is there")
)

// Present is a server that is there in a cold start, with its files.
type Present struct {
	Node int
	// Term is the last term in which the server was a member, as it noted durably: it notes a term
	// before it answers that it knows the term. 0: it was never a member.
	Term uint64
}

// ColdStart returns the configuration with which a pool goes on of which all servers have stopped
// (4.7), given the servers that are there. Each shard is promoted: its replicas gather what any of
// them has. Nothing is served before all complete replicas were found to have the same: see
// Compared.
//
// A server still has all that it acknowledged if it has been a member ever since its term: it is a
// member now, and became one no later than that. A server that was left out meanwhile has missed
// writes, though its files are intact: it is left out now, and may join, empty. So is one that
// became a member again and stopped before it knew: it is no complete replica, since it must know a
// term to report that it is complete.
//
// The configuration may be one that was proposed and not committed: nothing was served in it, and
// it calls no replica complete that was not.
//
// The error wraps ErrOlder when the registers do not have the last configuration, and ErrMissing
// when too few servers are there. The caller decides whether to give up what is lost then, by Fail.
func (c *Config) ColdStart(present []Present) (*Config, error) {
	counts := make([]bool, len(c.Members))
	for _, p := range present {
		if p.Term > c.Term {
			return nil, fmt.Errorf("start server %d, a member in term %d, by term %d: %w", p.Node, p.Term, c.Term,
				ErrOlder)
		}
		// The server has been a member ever since it became one in this configuration.
		if i, ok := c.index(p.Node); ok && p.Term >= c.Members[i].Since {
			counts[i] = true
		}
	}
	var missing []int
	for i, m := range c.Members {
		if !counts[i] {
			missing = append(missing, m.Node)
		}
	}
	if len(missing) == len(c.Members) {
		return nil, fmt.Errorf("start without servers %v: %w", missing, ErrMissing)
	}
	next, err := c.Fail(missing...)
	if err != nil {
		return nil, err
	}
	if lost := len(next.Lost()) - len(c.Lost()); lost > 0 {
		return nil, fmt.Errorf("start without servers %v, and %d shards have no other: %w", missing, lost, ErrMissing)
	}
	// Nothing is served in the term: memory may have been damaged while servers were stopped.
	next.Compare = true
	return next, nil
}
