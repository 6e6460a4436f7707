package shards

import (
	"errors"
	"fmt"
)

// What callers branch on when a pool starts whose servers have all stopped.
var (
	// ErrOlder is wrapped when a server was a member in a term behind the configuration's: that is not
	// the last one.
	ErrOlder = errors.New("the configuration is older than what a server has")
	// ErrMissing is wrapped when shards would be lost since servers are missing, which may come yet.
	ErrMissing = errors.New("no complete replica is there")
)

// Present is a server of a cold start: one whose files are there.
type Present struct {
	Node int
	// Term is the last one in which the server was a member, as it has it durably: a server notes a
	// term in which it is a member before it answers that it knows the term. 0: it was never.
	Term uint64
}

// ColdStart returns the configuration by which a pool goes on whose servers have all stopped (4.7),
// given the servers that are there. Each of its shards is promoted: its primary gathers what any of
// its replicas has. Nothing is served before all replicas have been found to have the same: see
// Compared.
//
// A server has what it was acknowledged to have if it has been a member ever since its term: it is
// one now, and became one no later. One that was left out meanwhile has missed writes, though its
// files are good: it is left out now, and may join, empty. A server that became a member again and
// stopped before it knew is left out, too. It is no complete replica, since it would have had to
// know the term to say so.
//
// A configuration that was proposed and not committed will do: nothing was served in it, and it
// calls nothing complete that was not.
//
// The error wraps ErrOlder when the pool's registers have forgotten the last configuration, and
// ErrMissing when too few servers are there. To give up what is lost then is for the caller to
// decide: by Fail.
func (c *Config) ColdStart(present []Present) (*Config, error) {
	counts := make([]bool, len(c.Members))
	for _, p := range present {
		if p.Term > c.Term {
			return nil, fmt.Errorf("start server %d, a member in term %d, by term %d: %w", p.Node, p.Term, c.Term,
				ErrOlder)
		}
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
	next.Compare = true
	return next, nil
}
