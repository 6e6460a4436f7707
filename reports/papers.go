// Package reports lists the papers whose evaluations are done again on simulated hardware, each by
// a package of its own over package eval, and draws results as plots.
package reports

import (
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/reports/fusee"
	"github.com/farkv/farkv/reports/rcuckoo"
	"github.com/farkv/farkv/reports/rowan"
	"github.com/farkv/farkv/reports/rtx"
	"github.com/farkv/farkv/reports/swarm"
)

// Papers are the papers that have an evaluation here.
var Papers = []*eval.Paper{fusee.Paper, swarm.Paper, rcuckoo.Paper, rowan.Paper, rtx.Paper}
