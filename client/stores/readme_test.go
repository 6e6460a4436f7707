package stores

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rdma/trace"
)

// TestReadme compares README's table of stores with the stores: their names, default replicas,
// limits, the deaths that they survive, and the trips of an uncontended GET, UPDATE, INSERT and
// DELETE.
func TestReadme(t *testing.T) {
	rows := readmeRows(t)
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			row := rows[name]
			if row == nil {
				t.Fatal("README's table has no such store")
			}
			k, err := Lookup(name)
			must(t, err)
			got := []string{fmt.Sprint(k.Size(Params{}).DataReplicas), yesNo(k.Scans), size(k.MaxPair),
				yesNo(k.Grows()), survives(t, k), tripsOf(t, k)}
			first, _, _ := strings.Cut(row[1], " ")
			_, largest, both := strings.Cut(row[3], "+ ")
			if !both {
				largest = row[3]
			}
			if want := []string{first, row[2], largest, row[4], row[5], row[6]}; !slices.Equal(got, want) {
				t.Errorf("replicas, scans, largest pair, grows, deaths and trips are %q, and README says %q", got, want)
			}
		})
		delete(rows, name)
	}
	for name := range rows {
		t.Errorf("README's table has a store %s, which there is not", name)
	}
}

// readmeRows returns the cells of README's table of stores by name: a row may be of several stores.
func readmeRows(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	must(t, err)
	_, table, _ := strings.Cut(string(text), "\n| store |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string][]string{}
	for _, line := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 7 {
			t.Fatalf("a row of README's table of stores: %q", cells)
		}
		names, _, _ := strings.Cut(cells[0], ":")
		for name := range strings.SplitSeq(names, ", ") {
			rows[strings.Trim(name, "`")] = cells
		}
	}
	return rows
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// size writes bytes as README does.
func size(bytes int) string {
	if bytes%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d,%03d B", bytes/1000, bytes%1000)
}

// survives says as README does which deaths a pool survives: one with three copies, where the store
// can have as many.
func survives(t *testing.T, k *Kind) string {
	params := Params{Nodes: 3, IndexReplicas: 3, DataReplicas: 3, Records: 1000, Clients: 8}
	p, err := Create("mem:", k.Name, params)
	if errors.Is(err, ErrParams) {
		params.IndexReplicas, params.DataReplicas = 0, 0
		p, err = Create("mem:", k.Name, params)
	}
	must(t, err)
	n, err := k.Outlives(p.Fabric, func(int) bool { return false })
	must(t, errors.Join(err, p.Close()))
	says := []string{"no node", "a minority of copies", "all copies but one"}
	if n < 0 || n >= len(says) {
		t.Fatalf("a pool of three nodes outlives %d", n)
	}
	return says[n]
}

// tripsOf returns the median trips of each operation on keys with a cached location.
func tripsOf(t *testing.T, k *Kind) string {
	p, err := Create("mem:", k.Name, Params{Records: 1000, Clients: 8, PairBytes: 256})
	must(t, err)
	defer p.Close()
	p.Kind = k // a way to use a pool of another store
	s, ep, err := p.Worker("trips", Options{})
	must(t, err)
	var took [4][]int
	count := func(op int, f func() error) {
		took[op] = append(took[op], int(trace.Trips(ep, func() { must(t, f()) }).Trips))
	}
	value := make([]byte, 8)
	for i := range 51 {
		key := fmt.Appendf(nil, "key%d", i)
		count(2, func() error { return s.Insert(key, value) })
		must(t, s.Update(key, value))
		count(0, func() error { _, err := s.Get(key); return err })
		count(1, func() error { return s.Update(key, value) })
		count(3, func() error { return s.Delete(key) })
	}
	must(t, s.Close())
	must(t, ep.Close())
	var medians [4]string
	for op, all := range took {
		slices.Sort(all)
		medians[op] = fmt.Sprint(all[len(all)/2])
	}
	return strings.Join(medians[:], "/")
}
