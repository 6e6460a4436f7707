package virtual

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/workloads/simulate"
)

// Simulated is what a simulation measured, in virtual time.
type Simulated struct {
	Workload string `json:"workload"`
	Title    string `json:"title,omitempty"`
	*simulate.Result
}

// Print implements Result.
func (s *Simulated) Print(w io.Writer) {
	compute := 0
	for _, m := range s.Machines {
		if m.Compute {
			compute++
		}
	}
	fmt.Fprintf(w, "%s on %s: %s and %s on %s, in virtual time\n", s.Store, s.Profile,
		format.Plural(s.Nodes, "memory node", "memory nodes"), format.Plural(s.Clients, "client", "clients"),
		format.Plural(compute, "compute node", "compute nodes"))
	title := s.Workload
	if s.Title != "" {
		title += ": " + s.Title
	}
	fmt.Fprintf(w, "%s\n", title)
	copies := fmt.Sprintf("%s of the index and %d of the data", format.Plural(s.IndexReplicas, "replica", "replicas"),
		s.DataReplicas)
	if k, err := stores.Lookup(s.Store); err == nil && k.Serve != nil {
		copies = format.Plural(s.DataReplicas, "replica", "replicas") + " of each shard"
	}
	fmt.Fprintf(w, "%s records of %s, %s, seed %d\n",
		format.Count(s.Records), format.UpTo(s.ObjectSizes, format.Count(s.PairBytes)+" B"), copies, s.Seed)
	if s.DeviceBytes > 0 {
		fmt.Fprintf(w, "%s B of each memory node are in the memory of its NIC\n", format.Count(int64(s.DeviceBytes)))
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "%s operations a second: %s in %s",
		format.PerSecond(s.Throughput), format.Count(s.Operations), seconds(s.Seconds))
	if s.Failed > 0 {
		fmt.Fprintf(w, ", %s of which failed", format.Count(s.Failed))
	}
	fmt.Fprint(w, "\n\n")
	s.printCalls(w)
	fmt.Fprintln(w)
	s.printMachines(w)
	if m, p := s.Busiest(); p.Busy >= full {
		fmt.Fprintf(w, "the bottleneck is %s of %s\n", p.Name, machineName(&m))
	}
	s.printPoints(w)
	for i, e := range s.Events {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "at %s: %s\n", seconds(e.Seconds), e.What)
	}
}

// full is the share of the time that a part of a machine has to be in use to be called a
// bottleneck.
const full = 0.95

func (s *Simulated) printCalls(w io.Writer) {
	rows := [][]string{{"", "calls", "mean", "p1", "p25", "p50", "p75", "p90", "p99", "p99.9", "max", "trips", "verbs",
		"read", "written"}}
	for i := range s.Calls {
		c := &s.Calls[i]
		l := &c.Latency
		row := []string{c.Name, format.Count(l.Count)}
		if l.Count == 0 {
			continue
		}
		for _, us := range []float64{l.Mean, c.At(0.01), c.At(0.25), l.P50, c.At(0.75), l.P90, l.P99, l.P999, l.Max} {
			row = append(row, format.Latency(us))
		}
		row = append(row, fmt.Sprintf("%.2f", c.Trips))
		if c.Cost != nil {
			row = append(row, fmt.Sprintf("%.2f", c.Cost.Verbs()+c.Cost.Calls),
				format.Count(int64(c.Cost.BytesRead+0.5))+" B",
				format.Count(int64(c.Cost.BytesWrote+0.5))+" B")
		}
		rows = append(rows, row)
	}
	table.Print(w, rows)
	for i := range s.Calls {
		if c := &s.Calls[i]; c.Failed != nil {
			fmt.Fprintf(w, "%s of %s failed, %s at the median; the first: %s\n", format.Count(c.Failed.Count), c.Name,
				format.Latency(c.Failed.P50), c.Error)
		}
	}
}

// printMachines prints how busy the memory nodes were, and of the compute nodes the mean and the
// busiest.
func (s *Simulated) printMachines(w io.Writer) {
	rows := [][]string{{"busy", "NIC", "link in", "link out", "PCIe in", "PCIe out", "atomics", "CPU", "verbs/s",
		"Gbit/s in", "Gbit/s out"}}
	var mean, most simulate.Machine
	sums := []*float64{&mean.NIC, &mean.LinkIn, &mean.LinkOut, &mean.CPU, &mean.Messages, &mean.GbitIn, &mean.GbitOut}
	n := 0
	for i := range s.Machines {
		m := &s.Machines[i]
		if !m.Compute {
			rows = append(rows, cellsOf(machineName(m), m))
			continue
		}
		n++
		for k, v := range []float64{m.NIC, m.LinkIn, m.LinkOut, m.CPU, m.Messages, m.GbitIn, m.GbitOut} {
			*sums[k] += v
		}
		if m.Messages > most.Messages {
			most = *m
		}
	}
	if n > 0 {
		for _, v := range sums {
			*v /= float64(n)
		}
		mean.Compute = true
		rows = append(rows, cellsOf("compute nodes, mean", &mean), cellsOf(machineName(&most), &most))
	}
	table.Print(w, rows)
}

func machineName(m *simulate.Machine) string {
	if m.Compute {
		return "compute node " + strconv.Itoa(m.Node)
	}
	return "node " + strconv.Itoa(m.Node)
}

func cellsOf(name string, m *simulate.Machine) []string {
	share := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
	cells := []string{name, share(m.NIC), share(m.LinkIn), share(m.LinkOut)}
	if m.Compute {
		cells = append(cells, "", "", "")
	} else {
		cells = append(cells, share(m.PCIeIn), share(m.PCIeOut), share(m.Atomics))
	}
	return append(cells, share(m.CPU), format.PerSecond(m.Messages), fmt.Sprintf("%.1f", m.GbitIn),
		fmt.Sprintf("%.1f", m.GbitOut))
}

func (s *Simulated) printPoints(w io.Writer) {
	if len(s.Points) == 0 {
		return
	}
	fmt.Fprintln(w)
	rows := [][]string{{"until", "operations/s", "mean", "failed/s"}}
	for _, p := range s.Points {
		failed := ""
		if p.Failed > 0 {
			failed = format.PerSecond(p.Failed)
		}
		rows = append(rows, []string{
			seconds(p.Seconds), format.PerSecond(p.Throughput), format.Latency(p.Latency), failed,
		})
	}
	table.Print(w, rows)
	fmt.Fprintf(w, "the longest time in which a client finished nothing: %s\n", format.Latency(s.LongestGap))
}

// seconds writes a time.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Microsecond).String()
}

// Print implements Result.
func (c *Clusters) Print(w io.Writer) {
	rows := [][]string{{"profile", "memory nodes", "compute nodes", "clients each", "what it is"}}
	for _, p := range c.Profiles {
		rows = append(rows, []string{p.Name, strconv.Itoa(p.Nodes), strconv.Itoa(p.ComputeNodes),
			strconv.Itoa(p.ClientsPerNode), p.Doc + " (" + p.Source + ")"})
	}
	table.Print(w, rows, 4)
}
