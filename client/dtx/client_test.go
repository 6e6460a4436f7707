package dtx

import (
	"maps"
	"slices"
	"time"

	"github.com/farkv/farkv/workloads/check/bank"
)

type (
	view     = bank.View[Ref]
	accounts = bank.Bank[Ref]
)

var errNothing = bank.ErrNothing

// newBank returns a bank of so many accounts.
func newBank(l *Layout, n int) *accounts {
	return &accounts{Root: l.Root, Accounts: n, NoObject: ErrNoObject}
}

// customer is a worker as a client of a bank.
type customer struct {
	*Worker
	known map[Ref]Version // what it guesses; nil: it does not
}

func (c customer) Now() time.Duration { return c.ep.Now() }

func (c customer) Read(r Ref) {
	if m, ok := c.Seen(r); ok && c.known != nil {
		c.known[r] = m
	}
}

func (c customer) Run(f func(tx bank.Tx[Ref]) error) error {
	return c.Worker.Run(func(tx *Tx) error {
		for _, r := range slices.Sorted(maps.Keys(c.known)) {
			tx.Guess(r, c.known[r])
		}
		return f(tx)
	})
}
