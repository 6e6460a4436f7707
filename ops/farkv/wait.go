package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/node/cluster/consul"
)

// waitForConsul lets a command wait for the agent of a consul: pool, and say so.
func (c *cli) waitForConsul(cmd *cobra.Command) error {
	switch {
	case c.wait < 0:
		return fmt.Errorf("--wait %v: want 0s or more", c.wait)
	case c.wait == 0:
		return nil
	}
	consul.BePatient(cmd.Context(), &consul.Patience{Wait: c.wait, Say: func(agent string, why error) {
		if c.quiet {
			return
		}
		if why == nil {
			why = errors.New("it does not answer")
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "waiting for the Consul agent at %s, for up to %v (--wait): %v\n", agent,
			c.wait, why)
	}})
	return nil
}
