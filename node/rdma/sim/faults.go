package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// FaultKind says what goes wrong.
type FaultKind uint8

// What can go wrong. Each is one Fault; those of a client hit its tasks, too.
const (
	// CrashFault stops a client or a memory node for good.
	CrashFault FaultKind = iota + 1
	// SlowFault multiplies what a memory node takes for everything by Factor, for a while.
	SlowFault
	// StallFault keeps a client from running for a while; what it has sent goes on. At a verb, what
	// the batch holds behind that one is sent afterwards.
	StallFault
	// PartitionFault cuts a client off a memory node for a while. What was sent in it lands when it
	// is over, unless its requester gives up before (Options.RetryTimeout) with rdma.ErrNodeDown;
	// of what had landed, the answers do.
	PartitionFault
	// FlyFault delays a verb on its way to the node, and what must keep behind it.
	FlyFault
	// LateFault delays a verb's completion; it has landed in time.
	LateFault
	// StepFault sets a client's clock forward, or back.
	StepFault
	// PowerFault cuts the power of a memory node, or of all at once, for a while. What is not
	// durable survives or not, word by word (AnySurvive). A node that a pool went on without
	// meanwhile stays away: see Restart.
	PowerFault
	// RestartFault ends a memory node, or all, and starts it anew after a while: its memory keeps
	// everything.
	RestartFault

	// lastFault bounds what Check takes; a new kind goes before it, with a name in faultKinds.
	lastFault = RestartFault
)

// faultKinds are the words of a fault's text, by kind.
var faultKinds = [...]string{"", "crash", "slow", "stall", "partition", "fly", "late", "step", "power", "restart"}

// FaultKinds returns all kinds.
func FaultKinds() (kinds []FaultKind) {
	for k := CrashFault; k <= lastFault; k++ {
		kinds = append(kinds, k)
	}
	return kinds
}

func (k FaultKind) String() string {
	if int(k) >= len(faultKinds) {
		return fmt.Sprintf("FaultKind(%d)", uint8(k))
	}
	return faultKinds[k]
}

// Wildcards in a Fault: all clients, and all memory nodes.
const (
	AnyClient = "*"
	AnyNode   = -1
)

// Fault is one thing that goes wrong. Fields that its kind does not use are zero.
//
// Its text is the kind, and the fields that are not zero as key=value, in any order. A name with
// other characters than letters, digits, -, _, ., # and * is in Go's quotes.
type Fault struct {
	Kind FaultKind
	// Client is a top-level worker: the first one of that name, or "#i", the i-th one that was
	// started, counting from 0. A crash without one is a memory node's.
	Client string
	// Node is a memory node. Used by SlowFault, PartitionFault, PowerFault, RestartFault, and the
	// crash of a node.
	Node int
	// Verb is when it happens: behind the client's verb or call of that number (FlyFault,
	// LateFault: to that one; the crash of a node: behind that verb on the node), counting from 1.
	// With 0 it is At that counts: virtual time since the pool was made; a FlyFault or LateFault is
	// then of the client's first verb after it.
	Verb uint64
	At   time.Duration
	// For is how long it lasts. It is 0 for a crash and a step, and above 0 for all others; the
	// delay of a FlyFault or a LateFault.
	For time.Duration
	// By is how far a clock is set. Only a StepFault has it; negative: back.
	By time.Duration
	// Factor is how many times as long everything takes. Only a SlowFault has it: above 0, and at
	// most a million. Below 1 the node is fast.
	Factor float64
}

// Faults are what goes wrong in a run. They draw nothing, so that any of them can be left out
// without a change to what is drawn elsewhere. Several may hit at the same time: delays add up, and
// so do the factors of a node by multiplication.
type Faults []Fault

// String returns f as ParseFaults reads it. The order of fields is fixed, so that the same fault
// has the same text.
func (f Fault) String() string {
	var t strings.Builder
	t.WriteString(f.Kind.String())
	onNode := f.onNode()
	if f.Client != "" {
		t.WriteString(" client=" + quote(f.Client))
	}
	if onNode && f.Node == AnyNode {
		t.WriteString(" node=*")
	} else if onNode {
		fmt.Fprintf(&t, " node=%d", f.Node)
	}
	if f.Factor != 0 {
		t.WriteString(" factor=" + strconv.FormatFloat(f.Factor, 'g', -1, 64))
	}
	if f.Verb != 0 {
		fmt.Fprintf(&t, " verb=%d", f.Verb)
	} else {
		fmt.Fprintf(&t, " at=%v", f.At)
	}
	if f.For != 0 {
		fmt.Fprintf(&t, " for=%v", f.For)
	}
	if f.By != 0 {
		fmt.Fprintf(&t, " by=%v", f.By)
	}
	return t.String()
}

// String returns all faults in one line that ParseFaults reads:
//
//	crash client="client 1" verb=7; slow node=0 factor=4 at=2ms for=1ms; stall client=* at=1ms
func (l Faults) String() string {
	parts := make([]string, len(l))
	for i, f := range l {
		parts[i] = f.String()
	}
	return strings.Join(parts, "; ")
}

// onNode reports whether it names a node, or all.
func (f *Fault) onNode() bool {
	return f.Kind == PartitionFault || f.ofNode() || f.Kind == CrashFault && f.Client == ""
}

// ofNode reports whether faults of its kind are of nodes alone.
func (f *Fault) ofNode() bool { return f.Kind == SlowFault || f.Outage() }

// Outage reports whether it takes nodes away that come back.
func (f *Fault) Outage() bool { return f.Kind == PowerFault || f.Kind == RestartFault }

// quote returns a name as it is where that is unmistakable. Elsewhere a space or a semicolon would
// end the word.
func quote(name string) string {
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.#*", r)) {
			return strconv.Quote(name)
		}
	}
	return name
}

// longest bounds times, so that sums of them are times. A fault's end stays far within an int64 of
// ns.
const longest = 1000 * time.Hour

// Check returns what is wrong with f in a pool of so many nodes. It does not look whether the
// client exists: a fault of a client that never begins does nothing.
func (f Fault) Check(nodes int) error {
	if f.Kind < CrashFault || f.Kind > lastFault {
		return fmt.Errorf("unknown kind of fault: %d", f.Kind)
	}
	// All but these two go on for a while.
	lasts := f.Kind != CrashFault && f.Kind != StepFault
	switch {
	case f.Client == "" && f.Kind != CrashFault && !f.ofNode():
		return fmt.Errorf("%v: which client?", f)
	case f.Client != "" && f.Kind == SlowFault:
		return fmt.Errorf("%v: only nodes are slow; a client stalls", f)
	case f.Client != "" && f.Outage():
		return fmt.Errorf("%v: only nodes come back; a client crashes", f)
	case f.onNode() && (f.Node < AnyNode || f.Node >= nodes || f.Node == AnyNode && f.Kind == CrashFault):
		return fmt.Errorf("%v: the pool has nodes 0 to %d", f, nodes-1)
	case !f.onNode() && f.Node != 0:
		return fmt.Errorf("%v: is not about a node", f)
	case f.At > longest || f.For > longest || f.By > longest || f.By < -longest:
		return fmt.Errorf("%v: nothing lasts longer than %v", f, longest)
	case f.At < 0 || f.Verb != 0 && f.At != 0:
		return fmt.Errorf("%v: needs a verb, or a time from 0 on", f)
	case f.Verb != 0 && (f.Kind == PartitionFault || f.ofNode()):
		return fmt.Errorf("%v: begins at a time, not at a verb", f)
	case lasts != (f.For > 0) || f.For < 0:
		return fmt.Errorf("%v: for how long?", f)
	case (f.Kind == StepFault) != (f.By != 0):
		return fmt.Errorf("%v: only a step, and every step, goes by some time", f)
	case (f.Kind == SlowFault) != (f.Factor != 0) || f.Kind == SlowFault && !(f.Factor > 0 && f.Factor <= 1e6):
		return fmt.Errorf("%v: only a slow node, and every one, has a factor, up to a million", f)
	}
	return nil
}

// ParseFaults reads what Faults.String writes. The nodes are not checked: the pool is not known.
// Faults are separated by semicolons; an empty one at the end is none. An error names the fault by
// its number, from 1.
func ParseFaults(line string) (Faults, error) {
	var l Faults
	for n := 1; strings.TrimSpace(line) != ""; n++ {
		f, rest, err := parseFault(line)
		if err == nil {
			err = f.Check(1 << 16)
		}
		if err != nil {
			return nil, fmt.Errorf("fault %d: %w", n, err)
		}
		l, line = append(l, f), rest
	}
	return l, nil
}

// parseFault reads up to the first semicolon outside quotes. It returns the rest behind the
// semicolon, for the next fault.
func parseFault(line string) (f Fault, rest string, err error) {
	word, rest, end := nextWord(line)
	for k, name := range faultKinds {
		if k > 0 && name == word {
			f.Kind = FaultKind(k)
		}
	}
	if f.Kind == 0 {
		return f, "", fmt.Errorf("%q is none of %s", word, strings.Join(faultKinds[1:], ", "))
	}
	for !end {
		word, rest, end = nextWord(rest)
		if word == "" && end {
			break
		}
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			return f, "", fmt.Errorf("%q is no key=value", word)
		}
		if err := f.set(key, value); err != nil {
			return f, "", fmt.Errorf("%s: %w", word, err)
		}
	}
	return f, rest, nil
}

// nextWord cuts a word off; end tells that it is the fault's last. A word ends at a space, a tab or
// a semicolon outside of quotes, and is returned with its quotes. A quote that does not end is
// taken as a letter.
func nextWord(line string) (word, rest string, end bool) {
	line = strings.TrimLeft(line, " \t")
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '"':
			q, err := strconv.QuotedPrefix(line[i:])
			if err == nil {
				i += len(q) - 1
			}
		case ';':
			return line[:i], line[i+1:], true
		case ' ', '\t':
			after := strings.TrimLeft(line[i:], " \t")
			if after != "" && after[0] == ';' {
				return line[:i], after[1:], true
			}
			return line[:i], after, after == ""
		}
	}
	return line, "", true
}

var errUnknownKey = errors.New("is none of client, node, verb, at, for, by, factor")

// set sets one field from its text. A key that comes twice keeps the last value. Its error does not
// name the key.
func (f *Fault) set(key, value string) (err error) {
	switch key {
	case "client":
		f.Client = value
		if strings.HasPrefix(value, `"`) {
			f.Client, err = strconv.Unquote(value)
		}
	case "node":
		if value == "*" {
			f.Node = AnyNode
			return nil
		}
		f.Node, err = strconv.Atoi(value)
	case "verb":
		f.Verb, err = strconv.ParseUint(value, 10, 64)
	case "at":
		f.At, err = time.ParseDuration(value)
	case "for":
		f.For, err = time.ParseDuration(value)
	case "by":
		f.By, err = time.ParseDuration(value)
	case "factor":
		f.Factor, err = strconv.ParseFloat(value, 64)
	default:
		return errUnknownKey
	}
	return err
}
