package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/farkv/farkv/client"
)

// Kind is what an operation asks for.
type Kind uint8

// The operations of client.Store, and of client.Scanner.
const (
	Get Kind = iota
	Insert
	Update
	Delete
	Scan // see Recorder.Scan, which judges by Gets
)

var kindNames = [...]string{"get", "insert", "update", "delete", "scan"}

func (k Kind) String() string { return kindNames[k] }

// Do calls the operation of a client.Store. A Get's value is dropped, and only Insert and Update
// take one.
func (k Kind) Do(s client.Store, key, value []byte) error {
	switch k {
	case Insert:
		return s.Insert(key, value)
	case Update:
		return s.Update(key, value)
	case Delete:
		return s.Delete(key)
	}
	_, err := s.Get(key)
	return err
}

// Answer is what an operation came back with.
type Answer uint8

// The answers. Those from Pending on leave the effect of a write unknown: it took place at some
// time after the call, or will, or never does.
const (
	OK        Answer = iota
	NotFound         // client.ErrNotFound
	Exists           // client.ErrExists
	Refused          // client.ErrTooLarge, ErrFull, or rdma.ErrTimeout alone: no effect
	TimedOut         // rdma.ErrTimeout, and not client.ErrUncertain: no effect
	Pending          // it has not returned, and may never
	Uncertain        // client.ErrUncertain or rdma.ErrNodeDown
	Failed           // any other error: see Op.Err
)

var answerNames = [...]string{"ok", "not found", "exists", "refused", "timed out", "not returned", "uncertain",
	"failed"}

func (a Answer) String() string { return answerNames[a] }

// Never is the return time of an operation that may take effect at any time.
const Never = time.Duration(math.MaxInt64)

// Op is one operation of a history.
type Op struct {
	Worker int           `json:"w"`
	Seq    int           `json:"n"` // counts the worker's operations
	Kind   Kind          `json:"op"`
	Key    []byte        `json:"key"`
	Value  Value         `json:"val,omitempty"` // written, or read by a Get that is OK
	Answer Answer        `json:"ans"`
	Err    string        `json:"err,omitempty"`
	Call   time.Duration `json:"call"`
	Return time.Duration `json:"ret"`
}

// unknown reports whether the effect of the operation is unknown: it may still take effect later.
func (o *Op) unknown() bool { return o.Answer >= Pending }

// observes reports whether the operation, going by its answer, changed nothing.
func (o *Op) observes() bool {
	return o.Kind == Get || o.Answer == NotFound || o.Answer == Exists
}

func (o *Op) String() string {
	s := fmt.Sprintf("w%d %s %q", o.Worker, o.Kind, o.Key)
	if o.Kind == Insert || o.Kind == Update {
		s += " " + o.Value.String()
	}
	s += " -> " + o.Answer.String()
	if o.Kind == Get && o.Answer == OK {
		s += " " + o.Value.String()
	}
	if o.Err != "" {
		s += " (" + o.Err + ")"
	}
	return s
}

// History is the operations of any number of workers, in any order.
type History []Op

// With returns the operations that came back with one of the answers.
func (h History) With(answers ...Answer) History {
	var out History
	for _, op := range h {
		if slices.Contains(answers, op.Answer) {
			out = append(out, op)
		}
	}
	return out
}

// Count returns how many operations of a kind came back with an answer.
func (h History) Count(k Kind, a Answer) int {
	n := 0
	for i := range h {
		if h[i].Kind == k && h[i].Answer == a {
			n++
		}
	}
	return n
}

// Encode writes h as JSON, an operation a line.
func (h History) Encode(w io.Writer) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	for i := range h {
		if err := e.Encode(&h[i]); err != nil {
			return fmt.Errorf("encode history: %w", err)
		}
	}
	return b.Flush()
}

// Decode reads what Encode or Recorder.LogTo wrote. Of several lines for one operation the last
// counts, and an unfinished last line, the mark of a killed process, is left out.
func Decode(r io.Reader) (History, error) {
	type id struct{ worker, seq int }
	seen := map[id]int{}
	var h History
	d := json.NewDecoder(r)
	for {
		var op Op
		err := d.Decode(&op)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return h, nil
		}
		if err == nil {
			err = op.valid()
		}
		if err != nil {
			return nil, fmt.Errorf("decode history: operation %d: %w", len(h)+1, err)
		}
		k := id{op.Worker, op.Seq}
		if i, ok := seen[k]; ok {
			h[i] = op
		} else {
			seen[k] = len(h)
			h = append(h, op)
		}
	}
}

func (o *Op) valid() error {
	if int(o.Kind) >= len(kindNames) || int(o.Answer) >= len(answerNames) {
		return fmt.Errorf("unknown operation %d or answer %d", o.Kind, o.Answer)
	}
	if o.Return < o.Call {
		return fmt.Errorf("returns at %v before it is called at %v", o.Return, o.Call)
	}
	return nil
}

// byCall sorts operations by the time of their call.
func byCall(ops []*Op) {
	sort.SliceStable(ops, func(i, j int) bool { return ops[i].Call < ops[j].Call })
}
