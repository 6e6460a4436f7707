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

// Health is a registered process and the state of its check.
type Health struct {
	Member
	// Status is "passing", "warning" or "critical". The last means that the process died, is
	// stopped, or is cut off from its agent.
	Status string
	// Output is the output of the check: what the process said when Status changed last, or later.
	// An agent passes on a new text without a new Status only every check_update_interval, 5
	// minutes by default.
	Output string
	// Agent is the name of the Consul node with which it is registered.
	Agent string
}

// Alive reports whether the process has updated its check within TTL.
func (h Health) Alive() bool { return h.Status == api.HealthPassing || h.Status == api.HealthWarning }

// Members lists the registered nodes or clients, sorted by pool, node and ID; with pool "" of all
// pools, and of none. The list is up to TTL old. It serves the discovery of nodes and monitoring;
// the right to write is decided elsewhere. Errors wrap membership.ErrUnreachable. If an error also
// wraps fs.ErrPermission the list has those that Consul shows to this token.
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

// errHidden says that the list is incomplete.
var errHidden = fmt.Errorf("%w: it hides some from this token, which lacks a rule: see 'farkv help consul'",
	fs.ErrPermission)

// health converts Consul's entry.
func health(kind Kind, e *api.ServiceEntry) Health {
	h := Health{Status: e.Checks.AggregatedStatus(), Agent: e.Node.Node}
	h.Member = Member{Kind: kind, ID: e.Service.ID, Pool: e.Service.Meta["pool"], Meta: e.Service.Meta}
	h.Index, _ = strconv.Atoi(e.Service.Meta["node"]) // 0 for a node that is in no pool
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
