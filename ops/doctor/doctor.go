// Package doctor examines what a machine has of what farkv can use, and what has to be installed or
// set. It changes nothing.
package doctor

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/workloads"
)

// Condition is how serious a Finding is.
type Condition string

// The conditions. What is missing keeps farkv from using the topic, what is to be warned of does
// not.
const (
	Fine    Condition = "ok"
	Warning Condition = "warn"
	Missing Condition = "missing"
)

// Finding is something that the machine has, or lacks.
type Finding struct {
	Condition Condition `json:"state"`
	What      string    `json:"what"`
	Found     string    `json:"found"`
	Do        string    `json:"do,omitempty"` // what to install or set
}

// Topic is the set of findings on what one feature of farkv needs.
type Topic struct {
	Name     string    `json:"name"`
	Ready    bool      `json:"ready"` // nothing is missing
	Findings []Finding `json:"findings"`
}

func (t *Topic) add(c Condition, what, found, do string) {
	t.Findings = append(t.Findings, Finding{c, what, found, do})
}

// ok, warn and missing add a finding; what to do about it may be "".
func (t *Topic) ok(what, found string)          { t.add(Fine, what, found, "") }
func (t *Topic) warn(what, found, do string)    { t.add(Warning, what, found, do) }
func (t *Topic) missing(what, found, do string) { t.add(Missing, what, found, do) }

// Health is what an Examination found.
type Health struct {
	Topics []Topic `json:"topics"`
}

// Examination examines a machine, and changes nothing.
type Examination struct {
	Machine
	Memory  uint64   // bytes that a memory node is to serve
	Require []string // topics that have to be ready
}

// topics are what an Examination covers, in the order of its output.
var topics = []struct {
	name  string
	linux bool // elsewhere there is nothing to look at
	look  func(d *Examination, ctx context.Context, t *Topic)
}{
	{"rdma", true, (*Examination).rdma},
	{"memlock", true, (*Examination).memlock},
	{"hugepages", true, (*Examination).hugePages},
	{"shm", true, (*Examination).shm},
	{"pmem", true, (*Examination).pmem},
	{"ipmctl", true, (*Examination).ipmctl},
	{"consul", false, (*Examination).consul},
	{"machine", false, (*Examination).machine},
}

// Topics returns the names of all topics.
func Topics() (names []string) {
	for _, t := range topics {
		names = append(names, t.name)
	}
	return names
}

// Run examines the machine. The error has what of Require is not ready; the Health is complete even
// then.
func (d *Examination) Run(ctx context.Context) (*Health, error) {
	for _, name := range d.Require {
		if all := Topics(); !slices.Contains(all, name) {
			return nil, workloads.Usagef("--require %s: want %s", name, strings.Join(all, ", "))
		}
	}
	h := new(Health)
	var lacking []string
	for _, topic := range topics {
		t := Topic{Name: topic.name}
		if topic.linux && d.System != "linux" {
			t.missing("Linux", "this is "+d.System, "")
		} else {
			topic.look(d, ctx, &t)
		}
		lacks := t.lacks()
		t.Ready = len(lacks) == 0
		h.Topics = append(h.Topics, t)
		if !t.Ready && slices.Contains(d.Require, t.Name) {
			lacking = append(lacking, fmt.Sprintf("%s (%s)", t.Name, strings.Join(lacks, ", ")))
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(lacking) > 0 {
		return h, fmt.Errorf("not ready: %s", strings.Join(lacking, "; "))
	}
	return h, nil
}

// lacks returns the findings that are missing.
func (t *Topic) lacks() (all []string) {
	for _, f := range t.Findings {
		if f.Condition == Missing {
			all = append(all, f.What)
		}
	}
	return all
}

// Print implements Result.
func (h *Health) Print(w io.Writer) {
	var rows [][]string
	for _, t := range h.Topics {
		name := t.Name
		for _, f := range t.Findings {
			rows = append(rows, []string{name, string(f.Condition), f.What, f.Found})
			if name = ""; f.Do != "" {
				rows = append(rows, []string{"", "", "", "-> " + f.Do})
			}
		}
	}
	table.Print(w, rows, 1, 2, 3)
}
