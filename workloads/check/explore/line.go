package explore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// ErrPlan is wrapped when a line is no plan.
var ErrPlan = errors.New("bad plan")

// letters of the operations, by check.Kind.
const letters = "giuds"

// String returns the plan as one line, such as this, which is broken here to fit the page:
//
//	seed=7 nodes=3 index=2 data=2 net=500ns-2µs,tear fly=0.01,200µs cache work=i0:40,u0:8/g0,d0
//	faults=crash client=worker-0 verb=17
//
// Work is a list of operations a worker, with slashes between workers: g0 is a Get of key 0, i, u
// and d are Insert, Update and Delete, and :40 is the bytes of the value; s0:3 is a Scan of 3 pairs
// from key 0 on. The faults are those of sim.Faults, to the end of the line; their clients are
// worker-0, worker-1, ... and keeper-0, keeper-1.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed=%d nodes=%d index=%d data=%d", p.Seed, p.Nodes, p.Index, p.Data)
	if p.Spares > 0 {
		fmt.Fprintf(&b, " spares=%d", p.Spares)
	}
	if p.Levels > 0 {
		fmt.Fprintf(&b, " levels=%d", p.Levels)
	}
	if p.Value > 0 {
		fmt.Fprintf(&b, " value=%d", p.Value)
	}
	fmt.Fprintf(&b, " net=%v-%v", p.Net.Min, p.Net.Max)
	if p.Net.Tear {
		b.WriteString(",tear")
	}
	if p.Net.Reorder {
		b.WriteString(",reorder")
	}
	if p.Net.Fly > 0 {
		fmt.Fprintf(&b, " fly=%v,%v", p.Net.Fly, p.Net.FlyMax)
	}
	if p.Cache {
		b.WriteString(" cache")
	}
	if p.Pause > 0 {
		fmt.Fprintf(&b, " pause=%v", p.Pause)
	}
	b.WriteString(" work=")
	for w, ops := range p.Work {
		if w > 0 {
			b.WriteByte('/')
		}
		for i, op := range ops {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(op.String())
		}
	}
	if len(p.Faults) > 0 {
		fmt.Fprintf(&b, " faults=%s", p.Faults)
	}
	return b.String()
}

func (o Op) String() string {
	s := fmt.Sprintf("%c%d", letters[o.Kind], o.Key)
	if o.sized() {
		s += fmt.Sprintf(":%d", o.Size)
	}
	return s
}

func (o Op) writes() bool { return o.Kind == check.Insert || o.Kind == check.Update }

func (o Op) sized() bool { return o.writes() || o.Kind == check.Scan }

// Parse reads a line that String wrote. Fields may come in any order and be left out. Errors wrap
// ErrPlan.
func Parse(line string) (*Plan, error) {
	p := &Plan{Seed: 1, Shape: Shape{Nodes: 1, Index: 1, Data: 1}, Net: Net{Min: 500, Max: 2000}, Work: make([][]Op, 1)}
	seen := map[string]bool{}
	line, faults, _ := strings.Cut(line, "faults=")
	var err error
	if p.Faults, err = sim.ParseFaults(faults); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPlan, err)
	}
	for field := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(field, "=")
		if seen[name] {
			return nil, fmt.Errorf("%w: %s is there twice", ErrPlan, name)
		}
		seen[name] = true
		if err := p.set(name, value, field); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrPlan, short(field), err)
		}
	}
	if err := p.valid(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPlan, err)
	}
	return p, nil
}

// short is as much of a field as an error repeats.
func short(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

func (p *Plan) set(name, value, field string) (err error) {
	switch name {
	case "seed":
		p.Seed, err = strconv.ParseUint(value, 10, 64)
	case "nodes":
		p.Nodes, err = number(value, 1, maxNodes)
	case "index":
		p.Index, err = number(value, 1, maxNodes)
	case "data":
		p.Data, err = number(value, 1, maxNodes)
	case "spares":
		p.Spares, err = number(value, 0, maxNodes)
	case "levels":
		p.Levels, err = number(value, 0, maxLevels)
	case "value":
		p.Value, err = number(value, 0, maxSize)
	case "net":
		err = p.Net.parse(value)
	case "fly":
		err = p.Net.parseFly(value)
	case "cache":
		p.Cache = true
		if field != name {
			err = errors.New("it takes no value")
		}
	case "pause":
		p.Pause, err = duration(value)
	case "work":
		p.Work, err = parseWork(value)
	default:
		err = errors.New("there is no such field")
	}
	return err
}

func (n *Net) parse(text string) (err error) {
	for i, part := range strings.Split(text, ",") {
		switch {
		case i == 0:
			low, high, _ := strings.Cut(part, "-")
			if n.Min, err = duration(low); err == nil {
				n.Max, err = duration(high)
			}
			if err == nil && (n.Min < 1 || n.Min > n.Max) {
				err = errors.New("want the least latency and the greatest, such as 500ns-2µs")
			}
		case part == "tear" && !n.Tear:
			n.Tear = true
		case part == "reorder" && !n.Reorder:
			n.Reorder = true
		default:
			err = fmt.Errorf("%q: want tear or reorder, once", part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *Net) parseFly(text string) (err error) {
	share, most, _ := strings.Cut(text, ",")
	if n.Fly, err = strconv.ParseFloat(share, 64); err != nil || !(n.Fly > 0 && n.Fly <= 1) {
		return errors.New("want a share above 0 and up to 1, and a time, such as 0.01,200µs")
	}
	n.FlyMax, err = duration(most)
	return err
}

func parseWork(text string) ([][]Op, error) {
	var work [][]Op
	total := 0
	for script := range strings.SplitSeq(text, "/") {
		var ops []Op
		for part := range strings.SplitSeq(script, ",") {
			if script == "" {
				break
			}
			op, err := parseOp(part)
			if err != nil {
				return nil, fmt.Errorf("operation %s: %w", short(part), err)
			}
			ops = append(ops, op)
		}
		total += len(ops)
		work = append(work, ops)
	}
	if len(work) > maxWorkers || total > maxOps {
		return nil, fmt.Errorf("%d workers with %d operations: want up to %d, and %d", len(work), total,
			maxWorkers, maxOps)
	}
	return work, nil
}

func parseOp(text string) (op Op, err error) {
	kind := -1
	if text != "" {
		kind = strings.IndexByte(letters, text[0])
	}
	if kind < 0 {
		return op, fmt.Errorf("want a letter of %s and a key", letters)
	}
	op.Kind = check.Kind(kind)
	key, size, sized := strings.Cut(text[1:], ":")
	if op.Key, err = number(key, 0, maxKeys-1); err != nil {
		return op, err
	}
	if sized != op.sized() {
		return op, errors.New("an insert, update or scan has a size, others none, such as u0:40")
	}
	if sized {
		op.Size, err = number(size, 0, maxSize)
	}
	return op, err
}

func number(text string, low, high int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high || text[0] == '+' {
		return 0, fmt.Errorf("%q: want %d to %d", short(text), low, high)
	}
	return n, nil
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxTime {
		return 0, fmt.Errorf("%q: want a time up to %v, such as 20µs", short(text), maxTime)
	}
	return d, nil
}

// valid returns an error when the fields contradict each other.
func (p *Plan) valid() error {
	serving := p.Nodes - p.Spares
	if p.Index > serving || p.Data > serving {
		return fmt.Errorf("%d index and %d data replicas on %d nodes with %d spares", p.Index, p.Data, p.Nodes,
			p.Spares)
	}
	if p.Net.FlyMax == 0 && p.Net.Fly > 0 {
		return errors.New("verbs that are late by no time")
	}
	if len(p.Faults) > maxFaults {
		return fmt.Errorf("%d faults: want up to %d", len(p.Faults), maxFaults)
	}
	for _, f := range p.Faults {
		if err := f.Check(p.Nodes); err != nil {
			return err
		}
		if max(f.At, f.For, f.By, -f.By) > maxTime {
			return fmt.Errorf("%v: want times up to %v", f, maxTime)
		}
	}
	return nil
}

// Kinds names the kinds of faults.
func Kinds() (names []string) {
	for _, k := range sim.FaultKinds() {
		names = append(names, k.String())
	}
	return names
}

// ParseKinds reads kinds of faults as sim.FaultKind writes them, such as crash and partition.
// Errors wrap ErrPlan.
func ParseKinds(names []string) ([]sim.FaultKind, error) {
	var kinds []sim.FaultKind
	all := sim.FaultKinds()
	for _, name := range names {
		i := slices.IndexFunc(all, func(k sim.FaultKind) bool { return k.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("%w: %q is no kind of fault: want some of %s", ErrPlan, short(name),
				strings.Join(Kinds(), ", "))
		}
		kinds = append(kinds, all[i])
	}
	return kinds, nil
}
