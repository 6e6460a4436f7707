package reports

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/reports/plot"
)

// film has the sums over the samples of a recording.
type film struct {
	name    string
	problem string
	seconds []float64 // since the first sample, of each but that
	ok      [telemetry.Kinds][]float64
	failed  []float64 // operations a second
	unknown []float64
	p       [3][]float64 // see filmed
	latency [telemetry.Kinds]telemetry.Histogram
	marks   []plot.Mark
	written []float64 // bytes a second to the media of all persistent memory
	asked   []float64 // bytes a second that were asked to be written
}

// filmed are the percentiles over time.
var filmed = [...]float64{50, 99, 99.9}

// process tells processes of a recording apart.
type process struct {
	host string
	pid  int
	life uint64
}

func readFilm(in *input) (*film, error) {
	r := in.recording
	f := &film{name: in.name, problem: r.Problem()}
	if r.Len() == 0 {
		return f, nil
	}
	began := r.Time(0)
	var before map[process]*telemetry.Process
	modules := map[int][]telemetry.DIMM{}
	last := began
	for s, err := range r.Samples() {
		if err != nil {
			return nil, fmt.Errorf("%s: %w", in.name, err)
		}
		now := map[process]*telemetry.Process{}
		for i := range s.Processes {
			p := &s.Processes[i]
			now[process{p.Host, p.PID, p.Life}] = p
		}
		if took := s.At.Sub(last).Seconds(); before != nil && took > 0 {
			f.add(s.At.Sub(began).Seconds(), took, before, now)
			f.addModules(modules, s.Nodes, took)
		}
		if before == nil || s.At.After(last) {
			before, last = now, s.At
			for i := range s.Nodes {
				if m := s.Nodes[i].PMem; m != nil {
					modules[s.Nodes[i].ID] = m.DIMMs
				}
			}
		}
	}
	for _, e := range r.Events() {
		f.marks = append(f.marks, plot.Mark{X: e.At.Sub(began).Seconds(), Text: eventText(&e)})
	}
	return f, nil
}

func eventText(e *telemetry.Event) string {
	text := e.Text
	text = cmp.Or(text, e.What)
	if e.Took > 0 {
		text += fmt.Sprintf(" (%v)", e.Took.Round(time.Millisecond))
	}
	return text
}

// add sums what processes did between two samples. A process that is new began with zeros. What a
// process that is gone did last is not known.
func (f *film) add(at, took float64, before, now map[process]*telemetry.Process) {
	var ok [telemetry.Kinds]float64
	var failed, unknown float64
	var all telemetry.Histogram
	none := new(telemetry.Process)
	for id, p := range now {
		old := before[id]
		if old == nil {
			old = none
		}
		for k := range p.Ops {
			a, b := &old.Ops[k], &p.Ops[k]
			ok[k] += rise(a.OK, b.OK)
			failed += rise(a.Failed, b.Failed)
			unknown += rise(a.Unknown, b.Unknown)
			if b.Latency == nil {
				continue
			}
			was := a.Latency
			if was == nil {
				was = new(telemetry.Histogram)
			}
			d := b.Latency.Sub(was)
			f.latency[k].Merge(d)
			all.Merge(d)
		}
	}
	f.seconds = append(f.seconds, at)
	for k := range ok {
		f.ok[k] = append(f.ok[k], ok[k]/took)
	}
	f.failed, f.unknown = append(f.failed, failed/took), append(f.unknown, unknown/took)
	for i, p := range filmed {
		f.p[i] = append(f.p[i], float64(all.Percentile(p))/1e3)
	}
}

// addModules sums what the persistent memory of the nodes wrote since before. Modules that cannot
// be compared count nothing.
func (f *film) addModules(before map[int][]telemetry.DIMM, nodes []telemetry.Node, took float64) {
	var written, asked float64
	for i := range nodes {
		if m := nodes[i].PMem; m != nil {
			for _, r := range pmem.Rates(before[nodes[i].ID], m.DIMMs, time.Duration(took*float64(time.Second))) {
				written, asked = written+r.MediaWritten, asked+r.RequestWrote
			}
		}
	}
	f.written, f.asked = append(f.written, written), append(f.asked, asked)
}

// amplification is the device-level write amplification over time, where anything was asked for.
func (f *film) amplification() plot.Series {
	s := plot.Series{Name: f.name}
	for i, asked := range f.asked {
		if asked > 0 {
			s.Points = append(s.Points, plot.Point{X: f.seconds[i], Y: f.written[i] / asked})
		}
	}
	return s
}

func rise(from, to uint64) float64 { return float64(to - min(from, to)) }

// over is a series of a film.
func (f *film) over(name string, values []float64) plot.Series {
	s := plot.Series{Name: name}
	for i, v := range values {
		s.Points = append(s.Points, plot.Point{X: f.seconds[i], Y: v})
	}
	return s
}

// sum is the throughput of all kinds.
func (f *film) sum() []float64 {
	all := make([]float64, len(f.seconds))
	for _, list := range f.ok {
		for i, v := range list {
			all[i] += v
		}
	}
	return all
}

// drawRecordings draws one recording by kind of operation, and compares several.
func drawRecordings(all []*input) (*plot.Page, error) {
	page := &plot.Page{Title: "Recording: " + names(all)}
	over := plot.Axis{Label: "time", Unit: plot.Seconds}
	rate := plot.Chart{Title: "Throughput over time", X: over, Y: plot.Axis{Unit: plot.Rate}}
	slow := plot.Chart{Title: "Latency over time", X: over, Y: plot.Axis{Unit: plot.Micros, Log: true}}
	media := plot.Chart{
		Title: "Write amplification of persistent memory", Note: "bytes written to the media, for each byte asked for",
		X: over,
	}
	var dist []plot.Series
	for _, in := range all {
		f, err := readFilm(in)
		if err != nil {
			return nil, err
		}
		media.Series = append(media.Series, f.amplification())
		if f.problem != "" {
			page.Lead += in.name + ": " + f.problem + "\n"
		}
		if len(all) > 1 {
			rate.Series = append(rate.Series, f.over(f.name, f.sum()))
			slow.Series = append(slow.Series, f.over(f.name+", p99", f.p[1]))
			whole := new(telemetry.Histogram)
			for k := range f.latency {
				whole.Merge(&f.latency[k])
			}
			dist = append(dist, distribution(f.name, whole))
			continue
		}
		for k := range f.ok {
			if positive(f.ok[k]) {
				rate.Series = append(rate.Series, f.over(telemetry.Kind(k).String(), f.ok[k]))
			}
			dist = append(dist, distribution(telemetry.Kind(k).String(), &f.latency[k]))
		}
		if positive(f.failed) {
			rate.Series = append(rate.Series, f.over("failed", f.failed))
		}
		if positive(f.unknown) {
			rate.Series = append(rate.Series, f.over("outcome unknown", f.unknown))
		}
		for i, p := range filmed {
			slow.Series = append(slow.Series, f.over(fmt.Sprintf("p%g", p), f.p[i]))
		}
		rate.Marks, slow.Marks = f.marks, f.marks
	}
	page.Charts = drawable([]plot.Chart{rate, slow, cdfChart("Latency", dist), media})
	return page, nil
}

func positive(values []float64) bool {
	return slices.ContainsFunc(values, func(v float64) bool { return v > 0 })
}

// distribution is the distribution of a histogram.
func distribution(name string, h *telemetry.Histogram) plot.Series {
	s := plot.Series{Name: name, Kind: plot.Steps}
	n := uint64(0)
	h.Buckets(func(_, to time.Duration, count uint64) bool {
		n += count
		s.Points = append(s.Points, plot.Point{X: float64(to) / 1e3, Y: 100 * float64(n) / float64(h.Count())})
		return true
	})
	return s
}
