package client

import "fmt"

// Report is what a store's check found.
type Report struct {
	Facts   []Use    // counts and bytes, in the order to print
	Damage  []string // what no correct run can leave behind; empty when all is well
	Waiting []string // what dead clients left for recovery; no damage
	// Unchecked is what the check did not see, and why: damage there is not found.
	Unchecked []string
	More      int // findings beyond MaxFindings, counted only
}

// MaxFindings bounds the findings that a report spells out: a broken pool may have millions.
const MaxFindings = 100

// Use is one line of a table: a name, a count and, where it means something, bytes.
type Use struct {
	Name  string
	Count uint64
	Bytes uint64
}

// Fact adds a line to the facts.
func (r *Report) Fact(name string, count, bytes uint64) {
	r.Facts = append(r.Facts, Use{name, count, bytes})
}

// Damaged adds a finding that is damage.
func (r *Report) Damaged(format string, args ...any) {
	r.add(&r.Damage, format, args)
}

// Waits adds a finding that waits for the recovery of a dead client.
func (r *Report) Waits(format string, args ...any) {
	r.add(&r.Waiting, format, args)
}

// Unseen adds something that the check could not look at.
func (r *Report) Unseen(format string, args ...any) {
	r.add(&r.Unchecked, format, args)
}

func (r *Report) add(list *[]string, format string, args []any) {
	if len(*list) >= MaxFindings {
		r.More++
		return
	}
	*list = append(*list, fmt.Sprintf(format, args...))
}
