package client

import "fmt"

// Report is the result of a store's check.
type Report struct {
	Facts   []Use    // counts and bytes, in the order to print
	Damage  []string // what no correct run leaves; empty if all is well
	Waiting []string // what crashes and changes of the view left for recovery; it is no damage
	// Unchecked lists what the check could not examine, and why. Damage there is not found.
	Unchecked []string
	More      int // findings beyond MaxFindings, which are only counted
}

// MaxFindings bounds the findings that are listed: a broken pool may have millions.
const MaxFindings = 100

// Use is a line of a table: a name, a count and, if it has a meaning, bytes.
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

// Waits adds a finding that the recovery of a dead client will remove.
func (r *Report) Waits(format string, args ...any) {
	r.add(&r.Waiting, format, args)
}

// Unseen adds something that the check could not examine.
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
