package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/farkv/farkv/node/cluster/consul"
	"github.com/farkv/farkv/node/rdma"
)

// consulDefault is where an agent listens unless it is told otherwise, as in Consul's own programs.
const consulDefault = "127.0.0.1:8500"

// consul asks the agent that Consul's environment names.
func (d *Examination) consul(_ context.Context, t *Topic) {
	named := d.Getenv("CONSUL_HTTP_ADDR")
	address, whence := named, "$CONSUL_HTTP_ADDR"
	if address == "" {
		address, whence = consulDefault, "$CONSUL_HTTP_ADDR is not set"
	}
	scheme, rest, ok := strings.Cut(address, "://")
	if ok {
		address = rest
	}
	if scheme == "https" && d.Getenv("CONSUL_HTTP_SSL") == "" {
		t.warn("TLS", whence+" says https", "farkv goes by CONSUL_HTTP_SSL=true")
	}
	a, err := consul.Dial(address)
	if err != nil {
		t.missing("agent", fmt.Sprintf("%v (%s)", err, whence), "export CONSUL_HTTP_ADDR=HOST:PORT")
		return
	}
	defer a.Close()
	version, leader, err := a.Self()
	says := ""
	if err != nil { // what the text says of a pool is left out: there is none here
		says = strings.ReplaceAll(err.Error(), rdma.ErrUnreachable.Error()+": ", "")
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.missing("agent", says, "export CONSUL_HTTP_TOKEN=...; 'farkv help consul' says what it has to permit")
	case err != nil:
		t.missing("agent", fmt.Sprintf("%s (%s)", says, whence),
			"'consul agent -dev' to try it; pools on memory nodes work without, too")
	case leader == "":
		t.missing("leader", fmt.Sprintf("agent %s, version %s, knows none: nothing can be changed", address, version),
			"see 'consul operator raft list-peers'")
	default:
		t.ok("agent", fmt.Sprintf("%s, version %s, leader %s", address, version, leader))
	}
}
