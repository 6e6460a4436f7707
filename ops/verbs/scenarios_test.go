package verbs

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rdma/trace"
	"github.com/farkv/farkv/ops/table"
)

// TestScenarios plays testdata/scenarios: a folder a store, a file a scenario, which shows a part
// of the store's protocol verb by verb. After a change of a protocol
//
//	go test ./ops/verbs -run TestScenarios -rewrite
//
// writes what is printed now. The commands are
//
//	pool STORE [nodes=N] [replicas=N] [index-replicas=N] [records=N] [clients=N]
//	client NAME...                     new clients; each inserts and deletes a key
//	get|insert|put|del NAME KEY [VALUE] [crash=N]
//	                                   an operation of a client, which dies before its N-th verb
//	kill NODE                          a memory node dies
//	recover                            a master does all that is due
//	check                              what farkv check finds
//
// Where the store has servers, crash is not known, and their verbs are shown, too: see servedPool.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, filepath.Join("testdata", "scenarios"), func(t *testing.T, path string) {
		s := &scenario{clients: map[string]*actor{}}
		defer func() {
			if s.sim != nil {
				s.sim.Close()
			}
		}()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.do(t, d) })
	})
}

// scenario is a pool in virtual time.
type scenario struct {
	sim      *sim.Sim
	kind     *stores.Kind
	describe func(rdma.Addr) string
	clients  map[string]*actor
	served   *servedPool // nil: the store has no servers
}

// actor is a client of a scenario. Its verbs go through faults, which are replaced for each of its
// operations, and a ring, to its own endpoint.
type actor struct {
	rdma.Endpoint // faults
	own           rdma.Endpoint
	noted         rdma.Endpoint
	ring          *trace.Ring
	store         client.Store
}

func (s *scenario) do(t *testing.T, d *datadriven.TestData) string {
	var out strings.Builder
	switch d.Cmd {
	case "pool":
		s.pool(t, d)
	case "client":
		for _, a := range d.CmdArgs {
			if s.served != nil {
				s.served.open(t, a.Key)
			} else {
				s.open(t, a.Key)
			}
		}
	case "kill":
		var n int
		if _, err := fmt.Sscan(d.CmdArgs[0].Key, &n); err != nil {
			d.Fatalf(t, "%v", err)
		}
		must(t, s.sim.KillNode(n))
	case "recover":
		if s.served != nil {
			s.served.recover(t, &out)
			break
		}
		ep, err := s.sim.Open("master")
		must(t, err)
		s.recover(t, ep, &out)
		must(t, ep.Close())
	case "check":
		var r client.Report
		check := func(rdma.Endpoint) {
			var err error
			r, err = s.kind.Check(s.sim)
			must(t, err)
		}
		if s.served != nil {
			s.served.run(t, check)
		} else {
			check(nil)
		}
		for _, damage := range r.Damage {
			fmt.Fprintln(&out, "damage:", damage)
		}
		for _, waiting := range r.Waiting {
			fmt.Fprintln(&out, "waits:", waiting)
		}
	default:
		if s.served != nil {
			s.served.operation(t, d, &out)
			break
		}
		s.operation(t, d, &out)
	}
	if out.Len() == 0 {
		return "ok\n"
	}
	return out.String()
}

// recover has a master do all that is due.
func (s *scenario) recover(t *testing.T, ep rdma.Endpoint, out *strings.Builder) {
	did, err := cluster.Once(ep, s.sim, s.kind.Recoverer(s.sim), cluster.Options{Lease: time.Millisecond})
	must(t, err)
	for _, e := range did {
		text, _, _ := strings.Cut(e.String(), " in ") // how long it took does not matter
		fmt.Fprintln(out, text)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *scenario) pool(t *testing.T, d *datadriven.TestData) {
	var err error
	s.kind, err = stores.Lookup(d.CmdArgs[0].Key)
	must(t, err)
	p := stores.Params{Nodes: 3, Records: 100, Clients: 16, PairBytes: 100}
	d.MaybeScanArgs(t, "nodes", &p.Nodes)
	d.MaybeScanArgs(t, "replicas", &p.DataReplicas)
	p.IndexReplicas = p.DataReplicas
	d.MaybeScanArgs(t, "index-replicas", &p.IndexReplicas)
	d.MaybeScanArgs(t, "records", &p.Records)
	d.MaybeScanArgs(t, "clients", &p.Clients)
	if s.kind.Serve != nil {
		p.Own = stores.Values{"server-shards": 1}
	}
	p = s.kind.Size(p)
	s.sim = sim.New(sim.Options{
		Seed: 1, Nodes: p.Nodes, Memory: p.Memory, Clients: p.Clients + p.Servers, Handler: node.Serve,
	})
	must(t, s.kind.Make(s.sim, p))
	ep, err := s.sim.Open("looks")
	must(t, err)
	s.describe, err = s.kind.Describe(ep)
	must(t, err)
	if s.kind.Serve != nil {
		s.served = s.serve(t)
	}
}

func (s *scenario) open(t *testing.T, name string) {
	own, err := s.sim.Open(name)
	must(t, err)
	a := &actor{own: own, ring: trace.NewRing(1000)}
	a.noted = a.ring.Endpoint(own, "")
	a.Endpoint = a.noted
	a.store, err = s.kind.Open(a, stores.Options{Fabric: s.sim})
	must(t, err)
	// So it has memory in hand, which the first writes of clients ask for.
	must(t, a.store.Insert([]byte(name), nil))
	must(t, a.store.Delete([]byte(name)))
	s.clients[name] = a
}

func (s *scenario) operation(t *testing.T, d *datadriven.TestData, out *strings.Builder) {
	if !slices.Contains(Operations, d.Cmd) || len(d.CmdArgs) < 2 || s.clients[d.CmdArgs[0].Key] == nil {
		d.Fatalf(t, "unknown command, or unknown client")
	}
	a := s.clients[d.CmdArgs[0].Key]
	tr := &Traced{Operation: d.Cmd, Key: []byte(d.CmdArgs[1].Key)}
	var value []byte
	if len(d.CmdArgs) > 2 && len(d.CmdArgs[2].Vals) == 0 {
		value = []byte(d.CmdArgs[2].Key)
	}
	var crash uint64
	d.MaybeScanArgs(t, "crash", &crash)
	if crash > 0 {
		a.Endpoint = fault.New(a.noted, fault.Fault{At: crash, Crash: fault.Stop})
	}
	err := tr.observe(a.store, a, a.ring, s.describe, value)
	rows, _ := tr.rows()
	for i := range rows { // without offsets and bytes, which say little
		rows[i] = append(rows[i][:4:4], rows[i][6:]...)
	}
	table.Print(out, brief(rows), 1, 2, 6)
	switch {
	case crash > 0:
		fmt.Fprintf(out, "%s is dead\n", d.CmdArgs[0].Key)
		delete(s.clients, d.CmdArgs[0].Key)
		must(t, s.sim.Revoke(a.own.Client()))
	case err != nil:
		fmt.Fprintln(out, err)
	case d.Cmd == "get":
		v, err := a.store.Get(tr.Key)
		must(t, err)
		fmt.Fprintf(out, "%s\n", v)
	}
}

// brief leaves out trips that repeat the trip before, of a client that waits.
func brief(rows [][]string) (list [][]string) {
	var trips [][][]string
	for _, row := range rows {
		if row[0] != "" {
			trips = append(trips, nil)
		}
		last := &trips[len(trips)-1]
		*last = append(*last, row)
	}
	same := func(a, b [][]string) bool {
		return slices.EqualFunc(a, b, func(x, y []string) bool { return slices.Equal(x[1:], y[1:]) })
	}
	for i, trip := range trips {
		switch repeats := i > 0 && same(trip, trips[i-1]); {
		case !repeats:
			list = append(list, trip...)
		case i+1 == len(trips) || !same(trip, trips[i+1]):
			list = append(list, []string{trip[0][0], "and so on", "", "", "", "", ""})
		}
	}
	return list
}
