package main

import (
	"fmt"
	"math"
	"strconv"

	"github.com/spf13/cobra"
)

// unbounded is the most of a number that has no limit of its own.
const unbounded = math.MaxInt64

// bounded refuses flags that are given, and are whole numbers below least or above most.
func bounded(cmd *cobra.Command, least, most int64, flags ...string) error {
	for _, name := range flags {
		f := cmd.Flags().Lookup(name)
		n, _ := strconv.ParseInt(f.Value.String(), 10, 64) // the most that it returns stands for more
		if !f.Changed || n >= least && n <= most {
			continue
		}
		if most == unbounded {
			return fmt.Errorf("--%s %v: want %d or more", name, f.Value, least)
		}
		return fmt.Errorf("--%s %v: want %d to %d", name, f.Value, least, most)
	}
	return nil
}

// filled refuses flags that are given without a value, as by an empty variable of a shell: what was
// to be kept would be forgotten.
func filled(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return fmt.Errorf("--%s is empty: leave it out, or name something", name)
		}
	}
	return nil
}
