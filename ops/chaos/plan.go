package chaos

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads"
)

// Planned is a break of a plan.
type Planned struct {
	After time.Duration // behind the break before it; the pool has to be whole, too
	Break
	Any bool // Break has no target: one is drawn
}

// What a plan may have.
const (
	maxPlanLines = 10_000
	maxPlanLine  = 1000 // bytes
	maxAfter     = 24 * time.Hour
)

// PlanText describes a plan's lines.
const PlanText = `A plan has a line a break, of up to four fields; # begins a comment:

  AFTER  KIND        TARGET                        DURATION
  20s    node        1
  20s    client      7
  5s     master
  1m     stop        node:1, client:7 or master    5s
  20s    slow=10ms   1                             5s
  20s    cut         1, 0,2 or clients,1           5s

AFTER is the time behind the break before; the pool has to be whole again, too. TARGET is a number, or any, which --seed
draws; cut 1 cuts node 1 off from everything, cut 0,2 two nodes from each other, cut clients,1 node 1 from clients.
DURATION may be left out: 5s.`

// ParsePlan reads a plan as PlanText describes it. Errors are misuse and name the line.
func ParsePlan(r io.Reader) (plan []Planned, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, maxPlanLine), maxPlanLine)
	n := 0
	for lines.Scan() {
		n++
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		p, err := parsePlanned(fields)
		if err == nil && len(plan) == maxPlanLines {
			err = fmt.Errorf("want up to %d breaks", maxPlanLines)
		}
		if err != nil {
			return nil, workloads.Usagef("--plan: line %d: %v (hint: 'farkv help crash' shows a plan)", n, err)
		}
		plan = append(plan, p)
	}
	switch {
	case lines.Err() != nil:
		return nil, workloads.Usagef("--plan: line %d: %v", n+1, lines.Err())
	case len(plan) == 0:
		return nil, workloads.Usagef("--plan: it has no breaks (hint: 'farkv help crash' shows a plan)")
	}
	return plan, nil
}

func parsePlanned(fields []string) (p Planned, err error) {
	if p.After, err = planTime(fields[0], maxAfter); err != nil {
		return p, fmt.Errorf("after %w", err)
	}
	if len(fields) < 2 || len(fields) > 4 {
		return p, fmt.Errorf("%d fields: want AFTER KIND [TARGET [DURATION]]", len(fields))
	}
	kind, slow, slowed := strings.Cut(fields[1], "=")
	p.Kind = BreakKind(kind)
	switch {
	case !slices.Contains(BreakKinds, p.Kind):
		return p, fmt.Errorf("kind %q: want %s", kind, kindList())
	case slowed && p.Kind != BreakSlow:
		return p, fmt.Errorf("%s: only slow takes a time", fields[1])
	case slowed:
		if p.Slow, err = planTime(slow, fabrics.MaxSlow); err != nil {
			return p, fmt.Errorf("slow %w", err)
		}
	}
	if err := p.parseTarget(strings.Join(fields[2:min(len(fields), 3)], "")); err != nil {
		return p, err
	}
	if len(fields) == 4 {
		if p.For, err = planTime(fields[3], fabrics.MaxFault); err != nil {
			return p, fmt.Errorf("duration %w", err)
		}
	}
	if !p.Any {
		err = p.complete()
	} else if p.For > 0 && (p.Kind == BreakNode || p.Kind == BreakClient) {
		err = fmt.Errorf("%s for %v: it is for good", p.Kind, p.For)
	}
	return p, err
}

// planTime reads a duration of more than 0, or 0 of an AFTER.
func planTime(text string, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > most || d == 0 && most != maxAfter {
		return 0, fmt.Errorf("%q: want a time such as 5s, up to %v", text, most)
	}
	return d, nil
}

// parseTarget reads what a break is about.
func (p *Planned) parseTarget(text string) error {
	if p.Any = text == "" || text == "any"; p.Any && p.Kind != BreakMaster {
		return nil
	}
	what, rest := string(p.Kind), text
	switch p.Kind {
	case BreakMaster:
		if !p.Any && text != "master" {
			return fmt.Errorf("master %q: it has no number", text)
		}
		p.Any, p.Master = false, true
		return nil
	case BreakStop:
		what, rest, _ = strings.Cut(text, ":")
		if p.Master = text == "master"; p.Master {
			return nil
		}
		if what != "node" && what != "client" {
			return fmt.Errorf("stop %q: want node:NUMBER, client:NUMBER, master or any", text)
		}
	case BreakCut:
		if after, ok := strings.CutPrefix(text, "clients,"); ok {
			p.Clients, rest = true, after
		}
	}
	for part := range strings.SplitSeq(rest, ",") {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return fmt.Errorf("%s %q: want a number, or any", p.Kind, text)
		}
		p.Nodes = append(p.Nodes, int(n))
	}
	if what == "client" {
		if len(p.Nodes) > 1 {
			return fmt.Errorf("%s %q: want one client", p.Kind, text)
		}
		p.Client, p.Nodes = p.Nodes[0], nil
	}
	return nil
}

// ParseCut reads the target of a cut: NODE, NODE,NODE,... or clients,NODE.
func ParseCut(text string) (Target, error) {
	p := Planned{Break: Break{Kind: BreakCut}}
	if err := p.parseTarget(text); err != nil || p.Any {
		return Target{}, workloads.Usagef("--cut %q: want a node such as 1, nodes such as 0,2 that are cut off from "+
			"each other, or clients,1", text)
	}
	return p.Target, nil
}

// ParseKinds reads kinds with commas between them.
func ParseKinds(names []string) (kinds []BreakKind, err error) {
	for _, name := range names {
		k := BreakKind(strings.TrimSpace(name))
		if !slices.Contains(BreakKinds, k) {
			return nil, workloads.Usagef("--kinds %s: want %s, with commas between them", name, kindList())
		}
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds, nil
}

// String writes a break as a line of a plan.
func (p Planned) String() string {
	kind, target, lasts := string(p.Kind), "any", ""
	if p.Slow > 0 {
		kind += "=" + p.Slow.String()
	}
	switch {
	case p.Any:
	case p.Master:
		target = "master"
	case p.Kind == BreakStop && p.Client > 0:
		target = fmt.Sprintf("client:%d", p.Client)
	case p.Client > 0:
		target = fmt.Sprint(p.Client)
	case p.Kind == BreakStop:
		target = "node:" + numbers(p.Nodes)
	case p.Clients:
		target = "clients," + numbers(p.Nodes)
	default:
		target = numbers(p.Nodes)
	}
	if p.For > 0 {
		lasts = " " + p.For.String()
	}
	return fmt.Sprintf("%v %s %s%s", p.After, kind, target, lasts)
}
