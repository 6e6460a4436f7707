package consul

import (
	"cmp"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"

	"github.com/hashicorp/consul/api"
)

// Health is a registered process and what its check says of it.
type Health struct {
	Member
	// Status is "passing", "warning" or "critical"; the last is one that died, stopped or is cut off
	// from its agent.
	Status string
	// Output of the check: what the process said when Status changed last, or later. Agents tell the
	// servers of a new text alone only every check_update_interval, 5 minutes unless configured.
	Output string
	Agent  string // the name of the Consul node it registered with
}

// Alive reports whether the process said something within TTL.
func (h Health) Alive() bool { return h.Status == api.HealthPassing || h.Status == api.HealthWarning }

// Members lists the registered nodes or clients, sorted by pool, node and ID; pool "": of all
// pools, and of none. It is what Consul heard, up to TTL ago, and good for finding nodes and for
// showing; the right to write is decided elsewhere. Errors wrap board.ErrUnreachable; with one that
// wraps fs.ErrPermission, too, come those that Consul shows to this token.
func (a *Agent) Members(kind Kind, pool string) ([]Health, error) {
	tag := ""
	if pool != "" {
		tag = poolTag(pool)
	}
	var entries []*api.ServiceEntry
	hidden := false
	err := a.ask(func(o *api.QueryOptions) (meta *api.QueryMeta, err error) {
		if entries, meta, err = a.client.Health().Service(kind.service(), tag, false, o); err == nil {
			hidden = meta.ResultsFilteredByACLs
		}
		return meta, err
	})
	if err != nil {
		return nil, a.failed(err, "list services %s", kind.service())
	}
	var members []Health
	for _, e := range entries {
		members = append(members, health(kind, e))
	}
	slices.SortFunc(members, func(a, b Health) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	if hidden {
		return members, a.failed(errHidden, "list services %s", kind.service())
	}
	return members, nil
}

var errHidden = fmt.Errorf("%w: it hides some from this token, which lacks a rule: see 'farkv help consul'",
	fs.ErrPermission)

func health(kind Kind, e *api.ServiceEntry) Health {
	h := Health{Status: e.Checks.AggregatedStatus(), Agent: e.Node.Node}
	h.Member = Member{Kind: kind, ID: e.Service.ID, Pool: e.Service.Meta["pool"], Meta: e.Service.Meta}
	h.Index, _ = strconv.Atoi(e.Service.Meta["node"]) // one that is in no pool has none
	if e.Service.Port > 0 {
		h.Address = net.JoinHostPort(cmp.Or(e.Service.Address, e.Node.Address), strconv.Itoa(e.Service.Port))
	}
	for _, c := range e.Checks {
		if c.ServiceID == h.ID {
			h.Output = c.Output
		}
	}
	return h
}
