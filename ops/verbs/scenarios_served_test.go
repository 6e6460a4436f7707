package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
	"github.com/farkv/farkv/ops/table"
)

// servedPool is the part of a scenario that has servers beside its nodes. They run within Sim.Run
// alone, and so does all that needs them: each command is a Run, which ends when the command has.
type servedPool struct {
	*scenario
	ring  *trace.Ring // what clients and servers post
	tasks map[string]*servedClient
}

// pollEvery is how often clients look for their next operation, and commands for its end.
const pollEvery = 100 * time.Microsecond

// servedClient is a client between two Runs: a task that looks for its next operation.
type servedClient struct {
	store client.Store
	do    func(client.Store) // nil: there is none
}

// serve starts the servers of a pool.
func (s *scenario) serve(t *testing.T) *servedPool {
	v := &servedPool{scenario: s, ring: trace.NewRing(10_000), tasks: map[string]*servedClient{}}
	for n := range s.sim.Nodes() {
		name := fmt.Sprint(stores.ServerName, n)
		must(t, s.sim.Host(n, name, func(ep rdma.Endpoint) {
			server, err := s.kind.Serve(v.ring.Endpoint(ep, name), s.sim, n)
			if err == nil {
				err = server.Run(v.ring.Endpoint(ep, name))
			}
			if err != nil && !errors.Is(err, rdma.ErrClosed) && !s.sim.Dead(n) {
				t.Errorf("%s: %v", name, err)
			}
		}))
	}
	v.warm(t)
	return v
}

// warm has each worker write once, so that it has a segment, and leave at backups, in hand.
func (v *servedPool) warm(t *testing.T) {
	v.open(t, "warm")
	v.do(t, v.tasks["warm"], func(s client.Store) {
		for i := range 64 {
			key := fmt.Append(nil, i)
			must(t, cmp.Or(s.Insert(key, nil), s.Delete(key)))
		}
	})
}

// run carries f out while the servers run.
func (v *servedPool) run(t *testing.T, f func(ep rdma.Endpoint)) {
	v.sim.Go("command", f)
	must(t, v.sim.Run())
}

// open starts a client, and waits until it has opened the store.
func (v *servedPool) open(t *testing.T, name string) {
	c := &servedClient{}
	v.tasks[name] = c
	v.run(t, func(ep rdma.Endpoint) {
		must(t, ep.Go(name, func(ep rdma.Endpoint) {
			ep = v.ring.Endpoint(ep, name)
			var err error
			c.store, err = v.kind.Open(ep, stores.Options{Fabric: v.sim})
			must(t, err)
			for {
				if c.do != nil {
					c.do(c.store)
					c.do = nil
				}
				ep.Sleep(pollEvery)
			}
		}))
		for c.store == nil {
			ep.Sleep(pollEvery)
		}
	})
}

// do has a client do something.
func (v *servedPool) do(t *testing.T, c *servedClient, f func(client.Store)) {
	v.run(t, func(ep rdma.Endpoint) {
		for c.do = f; c.do != nil; {
			ep.Sleep(pollEvery)
		}
	})
}

// operation has a client do an operation, and prints what the client and the workers of servers
// post until it is answered. What other tasks of servers do meanwhile does not matter to it.
func (v *servedPool) operation(t *testing.T, d *datadriven.TestData, out *strings.Builder) {
	if !slices.Contains(Operations, d.Cmd) || len(d.CmdArgs) < 2 || v.tasks[d.CmdArgs[0].Key] == nil {
		d.Fatalf(t, "unknown command, or unknown client")
	}
	name, tr := d.CmdArgs[0].Key, &Traced{Operation: d.Cmd, Key: []byte(d.CmdArgs[1].Key)}
	var value []byte
	if len(d.CmdArgs) > 2 {
		value = []byte(d.CmdArgs[2].Key)
	}
	first := v.ring.Next()
	var err error
	v.do(t, v.tasks[name], func(s client.Store) {
		if d.Cmd == "get" {
			value, err = s.Get(tr.Key)
		} else {
			err = tr.do(s, value)
		}
	})
	v.print(out, first, func(r *trace.Record) bool {
		return r.Worker == name || strings.Contains(r.Worker, ": worker ")
	})
	switch {
	case err != nil:
		fmt.Fprintln(out, err)
	case d.Cmd == "get":
		fmt.Fprintf(out, "%s\n", value)
	}
}

// print prints what some clients and tasks of servers have posted since a record of the ring. What
// fails again, or is posted again at once, is printed once.
func (v *servedPool) print(out *strings.Builder, first uint64, of func(r *trace.Record) bool) {
	rows, seen := [][]string{{"by", "step", "verb", "node", "what lies there"}}, map[string]bool{}
	for _, r := range v.ring.From(first) {
		if of(&r) {
			verb := verbOf(&r, 0, v.describe)
			row := []string{r.Worker, string(r.Step), verb.Verb, fmt.Sprint(verb.Node), cmp.Or(verb.Error, verb.What)}
			line := strings.Join(row, "|")
			if !(seen[line] && r.Err != nil || slices.Equal(row, rows[len(rows)-1])) {
				rows, seen[line] = append(rows, row), true
			}
		}
	}
	table.Print(out, rows, 0, 1, 2, 4)
}

// termSteps are what servers do as a term begins: they note it, and give each other what may not be
// on all replicas, and copy shards.
var termSteps = []rdma.Step{"mark shards", "note the term", "exchange", "tell"}

// recover has a master do all that is due, and prints what it did, and what the servers wrote.
func (v *servedPool) recover(t *testing.T, out *strings.Builder) {
	first := v.ring.Next()
	v.run(t, func(ep rdma.Endpoint) { v.scenario.recover(t, ep, out) })
	v.print(out, first, func(r *trace.Record) bool { return r.Verb != rdma.Read && slices.Contains(termSteps, r.Step) })
}
