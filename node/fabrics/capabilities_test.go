package fabrics

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/ibverbs"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// capabilities are the interfaces of node/rdma/capabilities.go.
var capabilities = map[string]reflect.Type{
	"AccessReporter": reflect.TypeFor[rdma.AccessReporter](),
	"CarrierNamer":   reflect.TypeFor[rdma.CarrierNamer](),
	"ClientCrasher":  reflect.TypeFor[rdma.ClientCrasher](),
	"ClientLister":   reflect.TypeFor[rdma.ClientLister](),
	"CloseNotifier":  reflect.TypeFor[rdma.CloseNotifier](),
	"Committer":      reflect.TypeFor[rdma.Committer](),
	"CPUMeter":       reflect.TypeFor[rdma.CPUMeter](),
	"DeviceReporter": reflect.TypeFor[rdma.DeviceReporter](),
	"DeviceWorker":   reflect.TypeFor[rdma.DeviceWorker](),
	"ExpelChecker":   reflect.TypeFor[rdma.ExpelChecker](),
	"Geometer":       reflect.TypeFor[rdma.Geometer](),
	"Messenger":      reflect.TypeFor[rdma.Messenger](),
	"Hoster":         reflect.TypeFor[rdma.Hoster](),
	"Localizer":      reflect.TypeFor[rdma.Localizer](),
	"MasterReporter": reflect.TypeFor[rdma.MasterReporter](),
	"NodeGracer":     reflect.TypeFor[rdma.NodeGracer](),
	"NodeKiller":     reflect.TypeFor[rdma.NodeKiller](),
	"NodeMonitor":    reflect.TypeFor[rdma.NodeMonitor](),
	"Peeker":         reflect.TypeFor[rdma.Peeker](),
	"Teller":         reflect.TypeFor[rdma.Teller](),
	"Perishable":     reflect.TypeFor[rdma.Perishable](),
	"ProcessNamer":   reflect.TypeFor[rdma.ProcessNamer](),
	"Ringer":         reflect.TypeFor[rdma.Ringer](),
	"TenureAdviser":  reflect.TypeFor[rdma.TenureAdviser](),
}

// implementations are what each fabric opens: the pool, and a worker's endpoint.
var implementations = []struct {
	name  string
	types []reflect.Type
}{
	{"shm", []reflect.Type{reflect.TypeFor[*shm.Fabric](), reflect.TypeFor[*shm.Endpoint]()}},
	{"tcp", []reflect.Type{reflect.TypeFor[*tcp.Fabric](), reflect.TypeFor[*tcp.Endpoint]()}},
	{"ibverbs", []reflect.Type{reflect.TypeFor[*ibverbs.Fabric](), reflect.TypeFor[*ibverbs.Endpoint]()}},
	{"sim", []reflect.Type{reflect.TypeFor[*sim.Sim](), simEndpoint()}},
}

// simEndpoint returns the type of what sim opens, which has no name outside.
func simEndpoint() reflect.Type {
	s := sim.New(sim.Options{})
	defer s.Close()
	ep, err := s.Open("worker")
	if err != nil {
		panic(err)
	}
	return reflect.TypeOf(ep)
}

// TestCapabilities compares what the comments of the capabilities say of fabrics with the fabrics.
func TestCapabilities(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../rdma/capabilities.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		name := g.Specs[0].(*ast.TypeSpec)
		if _, ok := name.Type.(*ast.InterfaceType); ok {
			_, has, _ := strings.Cut(g.Doc.Text(), "\nHas it: ")
			documented[name.Name.Name] = strings.TrimSpace(has)
		}
	}
	if !slices.Equal(slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(capabilities))) {
		t.Fatalf("capabilities.go has %v, this test %v", slices.Sorted(maps.Keys(documented)),
			slices.Sorted(maps.Keys(capabilities)))
	}
	for name, capability := range capabilities {
		var have []string
		for _, f := range implementations {
			if slices.ContainsFunc(f.types, func(is reflect.Type) bool { return is.Implements(capability) }) {
				have = append(have, f.name)
			}
		}
		if want := strings.Join(have, ", ") + "."; documented[name] != want {
			t.Errorf("%s: the comment says %q, and it is %q", name, documented[name], want)
		}
	}
}
