package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/metrics"
	"github.com/farkv/farkv/ops/metrics/metricstest"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/check/wait"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
)

// series are the metrics that programs of ours export, with the values that their labels have:
// metric, label, value.
type series map[string]map[string][]string

// reads is a database in which each READ succeeds.
type reads struct {
	runner.Database
	workloads.DB
}

func (r reads) Open(int) (workloads.DB, error)     { return r, nil }
func (reads) Read([]byte, *workloads.Record) error { return nil }
func (reads) Counters() *rdma.Counters             { return nil }
func (reads) Close() error                         { return nil }

// exported returns what a memory node that serves a pool, a keeper of that pool and a client
// export.
func exported(t *testing.T) series {
	t.Helper()
	node := smallNode()
	node.Memory = 64 << 20
	node.Metrics, node.IPMCTL.Timeout = "127.0.0.1:0", time.Minute
	node.IPMCTL.Program = filepath.Join(t.TempDir(), "ipmctl")
	script := "#!/bin/sh\nprintf -- '---DimmID=0x0001---\\nMediaWrites=0x10\\nWriteRequests=0x8\\n'"
	if err := os.WriteFile(node.IPMCTL.Program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s, end := serving(t, node)
	node.Metrics = ""
	partner, endPartner := serving(t, node) // alone it would need no lease
	defer func() {
		if err := errors.Join(end(), endPartner()); err != nil {
			t.Error(err)
		}
	}()
	pool := "tcp:" + s.Address + "," + partner.Address
	if _, err := ops.Up(pool, "fusee", stores.Params{Records: 100, Nodes: 2}); err != nil {
		t.Fatal(err)
	}
	p, err := stores.Open(pool)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	clients := metrics.NewClient()
	worker, err := clients.Observe(reads{}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Read(nil, nil); err != nil {
		t.Fatal(err)
	}
	other, err := metrics.Serve("127.0.0.1:0", false, func() error { return nil },
		metrics.OfPool(p.Fabric, new(drivers.Kept)), clients)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	all := series{}
	var text string
	wait.Until(t, "the node has read its counters", func() bool {
		_, text = metricstest.Fetch(t, s.Metrics)
		return strings.Contains(text, "farkv_node_pmem")
	})
	all.read(text)
	_, text = metricstest.Fetch(t, other.URL())
	all.read(text)
	return all
}

var (
	exposed  = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? `)
	labelled = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	// mention is a metric of an expression with its matchers.
	mention = regexp.MustCompile(`\b(farkv_[a-z_]+|process_[a-z_]+|up\b)(?:\{([^}]*)\})?`)
	// grouped are labels of an expression.
	grouped = regexp.MustCompile(`\b(?:by|on) \(([a-z, ]+)\)`)
)

// scraped are labels that Prometheus adds, by its settings.
var scraped = []string{"pool", "job", "instance", "le"}

func (s series) read(text string) {
	for _, m := range exposed.FindAllStringSubmatch(text, -1) {
		if s[m[1]] == nil {
			s[m[1]] = map[string][]string{}
		}
		for _, l := range labelled.FindAllStringSubmatch(m[2], -1) {
			s[m[1]][l[1]] = append(s[m[1]][l[1]], l[2])
		}
	}
}

// breach tells what of an expression is not exported; "": nothing.
func (s series) breach(expr string) string {
	labels := slices.Clone(scraped)
	all := mention.FindAllStringSubmatch(expr, -1)
	for _, m := range all {
		if m[1] == "up" { // Prometheus's own
			continue
		}
		have, ok := s[m[1]]
		if !ok {
			return m[1] + " is exported by nothing"
		}
		for label := range have {
			labels = append(labels, label)
		}
		for _, l := range labelled.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(scraped, l[1]) && !slices.Contains(have[l[1]], l[2]) {
				return fmt.Sprintf("%s has no %s", m[1], l[0])
			}
		}
	}
	for _, g := range grouped.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(g[1], ", ") {
			if !slices.Contains(labels, label) {
				return "no metric of it has the label " + label
			}
		}
	}
	if len(all) == 0 {
		return "it names no metric"
	}
	return ""
}

// TestDashboard: each metric, label and value that the dashboard of Grafana and the alerts of
// Prometheus name is exported.
func TestDashboard(t *testing.T) {
	all := exported(t)
	text, err := os.ReadFile("../grafana/farkv.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d, %q: want an ID of its own, a title and an expression", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			if wrong := all.breach(target.Expr); wrong != "" {
				t.Errorf("%s: %s: %s", p.Title, target.Expr, wrong)
			}
		}
	}
	rules, err := os.ReadFile("../prometheus/farkv.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	exprs := regexp.MustCompile(`(?m)^ +expr: (.*)$`).FindAllStringSubmatch(string(rules), -1)
	if n := strings.Count(string(rules), "- alert:"); len(exprs) != n || n == 0 ||
		strings.Count(string(rules), " action: ") != n {
		t.Errorf("%d alerts, %d expressions: each has one, and an action", n, len(exprs))
	}
	for _, e := range exprs {
		if wrong := all.breach(e[1]); wrong != "" {
			t.Errorf("alert: %s: %s", e[1], wrong)
		}
	}
}

func TestDashboardTeeth(t *testing.T) {
	all := series{}
	all.read("farkv_pool_nodes{state=\"up\"} 3\nfarkv_node_epoch 1\n")
	for expr, want := range map[string]string{
		`max by (pool) (farkv_pool_nodes{state="up"})`: "", `up{job="x"} == 0`: "", `farkv_node_epoch > 1`: "",
		`farkv_node_epok > 1`:                   "farkv_node_epok is exported by nothing",
		`farkv_pool_nodes{state="dead"}`:        `farkv_pool_nodes has no state="dead"`,
		`farkv_pool_nodes{sate="up"}`:           `farkv_pool_nodes has no sate="up"`,
		`sum by (stat) (farkv_pool_nodes)`:      "no metric of it has the label stat",
		`sum(rate(node_cpu_seconds_total[1m]))`: "it names no metric",
	} {
		if got := all.breach(expr); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}
