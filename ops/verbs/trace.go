// Package verbs shows each verb of an operation.
package verbs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/workloads"
)

// Traced is an operation and each verb of it.
type Traced struct {
	Pool      string
	Store     string
	Operation string // "get", "put", "insert" or "del"
	Key       []byte
	Cold      bool // the client's first operation
	Inserted  bool // a put did, since the key was not there
	Verbs     []TracedVerb
	Totals    rdma.Counters
	Paper     int // trips of the operation by the store's paper; 0: it has no number
}

// TracedVerb is one verb, or a call of a node's procedure.
type TracedVerb struct {
	Trip       uint64    `json:"trip,omitempty"`       // of the operation, from 1 on
	Background bool      `json:"background,omitempty"` // the operation does not wait for it
	Step       rdma.Step `json:"step"`
	Verb       string    `json:"verb"`
	Fenced     bool      `json:"fenced,omitempty"` // behind an ordering fence
	Node       int       `json:"node"`
	Offset     *uint64   `json:"offset,omitempty"` // none of a call, and of a message
	Bytes      int       `json:"bytes,omitempty"`
	Before     *Word     `json:"before,omitempty"` // the word there: of atomics, and of READs of one
	After      *Word     `json:"after,omitempty"`  // of atomics, and of WRITEs of one
	What       string    `json:"what,omitempty"`   // lies there
	Error      string    `json:"error,omitempty"`

	batch uint64
}

// Word is 8 bytes of memory. JSON has it in hexadecimal: many readers of JSON round large numbers.
type Word uint64

func (w *Word) String() string {
	if w == nil {
		return ""
	}
	return fmt.Sprintf("%#x", uint64(*w))
}

// MarshalText implements encoding.TextMarshaler.
func (w *Word) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// Operations are those that can be traced.
var Operations = []string{"get", "put", "insert", "del"}

// mostTraced bounds the verbs of an operation that are kept, the last ones.
const mostTraced = 10_000

// Trace carries out one operation and returns each verb of it. What a client does only at first
// comes before, unless it is to be cold: it inserts and deletes another key, so that it has memory
// in hand, and reads the key, or puts it, so that it knows where that is. Where the operation fails
// the error is returned beside what it did.
func Trace(addr, operation string, key, value []byte, cold bool) (*Traced, error) {
	pool, err := stores.Open(addr)
	if err != nil {
		return nil, ops.Explain(err, addr)
	}
	t := &Traced{Pool: pool.Address, Store: pool.Kind.Name, Operation: operation, Key: key, Cold: cold}
	err = errors.Join(t.on(pool, value), pool.Close())
	if err != nil {
		err = fmt.Errorf("%s %q in %s: %w", operation, key, pool.Address, err)
		if errors.Is(err, client.ErrTooLarge) {
			err = fmt.Errorf("%w (hint: %s)", err, pool.Kind.TooLarge(len(key)+len(value)))
		}
		err = ops.ExplainAt(err, addr)
	}
	if t.Totals == (rdma.Counters{}) { // nothing was begun
		return nil, err
	}
	return t, err
}

// on traces the operation on an open pool, by a client of its own.
func (t *Traced) on(pool *stores.Pool, value []byte) error {
	own, err := pool.Fabric.Open("trace")
	if err != nil {
		return err
	}
	ring := trace.NewRing(mostTraced)
	ep := ring.Endpoint(own, "")
	store, err := pool.Kind.Open(ep, stores.Options{Fabric: pool.Fabric})
	if err != nil {
		return errors.Join(err, ep.Close())
	}
	if err := pool.Keep(cluster.Options{}); err != nil {
		return errors.Join(err, client.Leave(store, ep, pool.Fabric))
	}
	describe, looks, err := describer(pool)
	if err != nil {
		return errors.Join(err, client.Leave(store, ep, pool.Fabric))
	}
	if !t.Cold {
		err = warm(store, t.Operation, t.Key, value, ep.Rand().Uint64, func() uint64 { return ep.Counters().Trips })
	}
	if err == nil {
		if err = t.observe(store, ep, ring, describe, value); err == nil {
			t.Paper = pool.Kind.Paper[t.paper()]
		}
	}
	return errors.Join(err, client.Leave(store, ep, pool.Fabric), looks.Close())
}

// observe carries the operation out, and notes the verbs that a ring beside the endpoint has seen.
func (t *Traced) observe(s client.Store, ep rdma.Endpoint, ring *trace.Ring, describe func(rdma.Addr) string,
	value []byte) error {
	from, before := ring.Next(), *ep.Counters()
	err := t.do(s, value)
	t.Totals = ep.Counters().Sub(before)
	for _, r := range ring.From(from) {
		t.Verbs = append(t.Verbs, verbOf(&r, before.Trips, describe))
	}
	return err
}

// describer returns what tells what lies at an address, and the endpoint by which it looks.
func describer(pool *stores.Pool) (func(rdma.Addr) string, rdma.Endpoint, error) {
	ep, err := pool.Fabric.Open("trace looks")
	if err != nil {
		return nil, nil, err
	}
	if pool.Kind.Describe == nil {
		return func(rdma.Addr) string { return "" }, ep, nil
	}
	describe, err := pool.Kind.Describe(ep)
	if err != nil {
		return nil, nil, errors.Join(err, ep.Close())
	}
	return describe, ep, nil
}

const (
	warmRounds = 8 // so that a client that takes little memory at first has some in hand
	warmTries  = 8 // to draw a key that is not there, and to come to the trips of an operation
)

// warm has a client do first what it does only at first. Memory may be taken by shard, so a put of
// a key that is there is done until two in turn take as many trips; it leaves the pair that the
// traced one is to leave.
func warm(s client.Store, operation string, key, value []byte, draw, trips func() uint64) error {
	var other []byte
	err := error(client.ErrExists)
	for n := 0; n < warmTries && errors.Is(err, client.ErrExists); n++ {
		other = fmt.Appendf(nil, "%016x", draw())[:max(1, min(len(key), 16))]
		err = s.Insert(other, value)
	}
	for n := 1; n < warmRounds && err == nil; n++ {
		err = cmp.Or(s.Delete(other), s.Insert(other, value))
	}
	if err == nil {
		err = s.Delete(other)
	}
	if errors.Is(err, client.ErrExists) {
		err = nil
	}
	last := uint64(0)
	for n := 0; n < warmTries && err == nil; n++ {
		before := trips()
		if operation == "put" {
			err = s.Update(key, value)
		} else {
			_, err = s.Get(key)
		}
		took := trips() - before
		if took == last {
			break
		}
		last = took
	}
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		return fmt.Errorf("get ready: %w", err)
	}
	return nil
}

// do carries the operation out. A put is an UPDATE, and an INSERT where the key is not there.
func (t *Traced) do(s client.Store, value []byte) error {
	switch t.Operation {
	case "get":
		_, err := s.Get(t.Key)
		return err
	case "put":
		err := s.Update(t.Key, value)
		if errors.Is(err, client.ErrNotFound) {
			t.Inserted = true
			err = s.Insert(t.Key, value)
		}
		return err
	case "insert":
		return s.Insert(t.Key, value)
	case "del":
		return s.Delete(t.Key)
	}
	return workloads.Usagef("trace %q: want %s", t.Operation, strings.Join(Operations, ", "))
}

// paper returns what papers call the operation; "": none of them has what was done.
func (t *Traced) paper() string {
	if t.Cold || t.Inserted {
		return ""
	}
	return map[string]string{"get": "GET", "put": "UPDATE", "insert": "INSERT", "del": "DELETE"}[t.Operation]
}

// call is how a call of a node's procedure is shown among verbs.
const call = "CALL"

// verbOf makes a record readable. Trips are counted from those before the operation on.
func verbOf(r *trace.Record, before uint64, describe func(rdma.Addr) string) TracedVerb {
	v := TracedVerb{Background: !r.Waited, Step: r.Step, Node: r.Addr.Node(), batch: r.Batch}
	if r.Waited {
		v.Trip = r.Trip - before
	}
	if r.Err != nil {
		v.Error = r.Err.Error()
	}
	if r.Verb == 0 {
		v.Verb, v.What = call, fmt.Sprintf("procedure %d of the node", r.Proc)
		return v
	}
	v.Fenced, v.Verb, v.Bytes = r.Fence, r.Verb.String(), r.Len
	if r.Verb == rdma.Send || r.Verb == rdma.Append { // which go to no memory that the sender knows
		v.What = r.Verb.Target(r.Addr)
		return v
	}
	off := r.Addr.Offset()
	v.Offset, v.What = &off, describe(r.Addr)
	switch {
	case !r.Done && r.Verb != rdma.Write || r.Err != nil:
	case r.Verb.Atomic():
		v.Before, v.After = (*Word)(&r.Result), (*Word)(&r.After)
	case r.Len != 8:
	case r.Verb == rdma.Read:
		v.Before = (*Word)(&r.Words[0])
	default:
		v.After = (*Word)(&r.Words[0])
	}
	return v
}

// MarshalJSON writes the key as Pair does.
func (t *Traced) MarshalJSON() ([]byte, error) {
	m := map[string]any{"pool": t.Pool, "store": t.Store, "operation": t.Operation, "cold": t.Cold,
		"inserted": t.Inserted, "verbs": t.Verbs,
		"totals": map[string]uint64{
			"trips": t.Totals.Trips, "doorbells": t.Totals.Doorbells, "reads": t.Totals.Reads,
			"writes":  t.Totals.Writes,
			"atomics": t.Totals.Atomics, "sends": t.Totals.Sends, "calls": t.Totals.Calls,
			"bytes_read": t.Totals.BytesRead, "bytes_written": t.Totals.BytesWrote,
		}}
	format.AddText(m, "key", t.Key)
	if t.Paper > 0 {
		m["paper_trips"] = t.Paper
	}
	return json.Marshal(m)
}

// Print implements Result.
func (t *Traced) Print(w io.Writer) {
	fmt.Fprintf(w, "%s %q in %s, a pool of %s", t.Operation, t.Key, t.Pool, t.Store)
	if t.Inserted {
		fmt.Fprint(w, ": an UPDATE, and an INSERT since the key is not there")
	}
	fmt.Fprint(w, "\n\n")
	rows, background := t.rows()
	table.Print(w, rows, 1, 2, 8)
	c := &t.Totals
	fmt.Fprintf(w, "\n%s", format.Plural(int(c.Trips), "trip", "trips"))
	if t.Paper > 0 {
		fmt.Fprintf(w, " (in the paper: %d)", t.Paper)
	}
	fmt.Fprintf(w, ", %s; %s: %d READ, %d WRITE, %d atomic", format.Plural(int(c.Doorbells), "doorbell", "doorbells"),
		format.Plural(int(c.Verbs()), "verb", "verbs"), c.Reads, c.Writes, c.Atomics)
	if c.Sends > 0 {
		fmt.Fprintf(w, ", %d SEND", c.Sends)
	}
	if c.Calls > 0 {
		fmt.Fprintf(w, "; %s", format.Plural(int(c.Calls), "call", "calls"))
	}
	fmt.Fprintf(w, "; %s read, %s written\n", format.Plural(int(c.BytesRead), "byte", "bytes"),
		format.Plural(int(c.BytesWrote), "byte", "bytes"))
	if background > 0 {
		fmt.Fprintf(w, "-: %s in the background, for which the operation does not wait\n",
			format.Plural(background, "verb", "verbs"))
	}
	if k, err := stores.Lookup(t.Store); err == nil && k.Serve != nil {
		fmt.Fprintln(w, "each SEND is a request, whose answer is one more message; what servers do for it is not shown")
	}
}

// rows is a table of the verbs, and how many of them the operation does not wait for.
func (t *Traced) rows() (rows [][]string, background int) {
	rows = [][]string{{"trip", "step", "verb", "node", "offset", "bytes", "before", "after", "what lies there"}}
	for i, v := range t.Verbs {
		trip, step := fmt.Sprint(v.Trip), string(v.Step)
		if v.Background {
			trip = "-"
			background++
		}
		if last := max(i-1, 0); i > 0 && v.batch > 0 && t.Verbs[last].batch == v.batch && t.Verbs[last].Trip == v.Trip {
			trip, step = "", ""
		}
		verb := v.Verb
		if v.Fenced {
			verb += ", fenced"
		}
		row := []string{trip, step, verb, fmt.Sprint(v.Node), "", "", v.Before.String(), v.After.String(),
			cmp.Or(v.Error, v.What)}
		if v.Offset != nil {
			row[4] = fmt.Sprintf("%#x", *v.Offset)
		}
		if v.Verb != call {
			row[5] = fmt.Sprint(v.Bytes)
		}
		if v.Before != nil && v.After != nil && *v.Before == *v.After {
			row[7] = "unchanged"
		}
		rows = append(rows, row)
	}
	return rows, background
}
