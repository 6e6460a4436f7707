package reports

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/reports/plot"
	"github.com/farkv/farkv/workloads/recording"
)

// aReportOf is a small report, such as an evaluation makes.
func aReportOf() *eval.Report {
	p := &eval.Part{
		Name: "pairs", Title: "throughput for smaller pairs",
		Units:  []plot.Unit{plot.Number, plot.Rate, plot.Percent, plot.Percent, plot.Number},
		Header: []string{"pair", "throughput", "gain", "paper", "busiest"},
		Rows: [][]eval.Cell{
			{eval.Text("1024 B"), eval.Mops(10e6), {}, {}, eval.Text("link")},
			{eval.Text("512 B"), eval.Mops(20e6), eval.Percent(99.8), eval.Percent(44.1), eval.Text("link")},
			{eval.Text("busiest"), {}, {}, {}, {}},
		},
		Claims: []eval.Verdict{
			{About: "pairs-512", Figure: eval.Figure{Section: "6.3", Says: "gains", Printed: "44.1", Unit: "%"},
				Ours: "99.8 %", Outcome: eval.Differs},
			{About: "pairs-why", Figure: eval.Figure{Section: "6.3", Says: "the link"}, Ours: "the link",
				Outcome: eval.Holds},
			{About: "replicas-d1", Figure: eval.Figure{Printed: "8.8", Unit: "Mops"}, Ours: "18.82 Mops",
				Outcome: eval.TooSmall},
			{About: "allocation-a", Figure: eval.Figure{Printed: "-90.9", Unit: "%"}, Ours: "-91.2 %",
				Outcome: eval.Differs},
		},
	}
	return &eval.Report{Paper: "A paper", Parts: []*eval.Part{p}}
}

func TestChartsOfAReport(t *testing.T) {
	r := aReportOf()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	read := new(input)
	if err := read.read(text); err != nil {
		t.Fatal(err)
	}
	for _, page := range []*plot.Page{r.Page(), read.report.Page()} {
		var got bytes.Buffer
		if err := plot.CSV(&got, page.Charts...); err != nil {
			t.Fatal(err)
		}
		want := `chart,series,x,x unit,y,y unit,text
pairs: throughput for smaller pairs,throughput,1024 B,,1e+07,op/s,
pairs: throughput for smaller pairs,throughput,512 B,,2e+07,op/s,
pairs: throughput for smaller pairs,gain,512 B,,99.8,%,
pairs: throughput for smaller pairs,paper,512 B,,44.1,%,
pairs: beside what the paper prints,here,pairs-512,,99.8,%,6.3: gains (DIFFERS)
pairs: beside what the paper prints,here,allocation-a,,-91.2,%,:  (DIFFERS)
pairs: beside what the paper prints,"the paper, as printed",pairs-512,,44.1,%,6.3: gains
pairs: beside what the paper prints,"the paper, as printed",allocation-a,,-90.9,%,: 
pairs: beside what the paper prints,here,replicas-d1,,1.882e+07,op/s,:  (TOO SMALL)
pairs: beside what the paper prints,"the paper, as printed",replicas-d1,,8.8e+06,op/s,: 
`
		if got.String() != want {
			t.Errorf("got\n%s", got.String())
		}
		if c := page.Charts[1]; c.Series[1].Kind != plot.Dots || c.Series[0].Kind != plot.Bars {
			t.Error("the paper's numbers are no dots beside bars")
		}
		if len(page.Notes[0].Rows) != 4 {
			t.Error("verdicts are missing")
		}
	}
}

// record writes a recording of a process that makes 100 gets of 5 µs a second, beside another that
// joins at second 3.
func record(t *testing.T, file string) {
	t.Helper()
	w, err := recording.Create(file, "a test")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	gets := func(n int) telemetry.Ops {
		h := new(telemetry.Histogram)
		for range n {
			h.Record(5 * time.Microsecond)
		}
		return telemetry.Ops{OK: uint64(n), Latency: h}
	}
	for second := range 6 {
		s := &telemetry.Sample{At: began.Add(time.Duration(second) * time.Second)}
		p := telemetry.Process{Host: "a", PID: 1}
		p.Ops[telemetry.Get] = gets(1000 + 100*second)
		module := telemetry.DIMM{ID: "0x0001", MediaWrites: uint64(300 * second),
			WriteRequests: uint64(100 * min(second, 3))}
		s.Nodes = append(s.Nodes, telemetry.Node{PMem: &telemetry.PMem{DIMMs: []telemetry.DIMM{module}}})
		p.Ops[telemetry.Update].Unknown = uint64(second / 5)
		s.Processes = append(s.Processes, p)
		if second >= 3 {
			q := telemetry.Process{Host: "a", PID: 2}
			q.Ops[telemetry.Get] = gets(50 * (second - 2))
			s.Processes = append(s.Processes, q)
			s.Events = []telemetry.Event{{At: s.At, Text: "event"}}
		}
		if err := w.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestChartsOfARecording(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.fkr")
	record(t, file)
	page, err := Draw([]string{file})
	if err != nil || len(page.Charts) != 4 {
		t.Fatal(err, page)
	}
	rate, slow, dist := page.Charts[0], page.Charts[1], page.Charts[2]
	for i, want := range []float64{100, 100, 150, 150, 150} {
		if p := rate.Series[0].Points[i]; p.Y != want || p.X != float64(i+1) {
			t.Errorf("second %d: %v, want %v", i, p, want)
		}
	}
	if len(rate.Series) != 2 || rate.Series[1].Name != "outcome unknown" || rate.Series[1].Points[4].Y != 1 ||
		len(rate.Marks) != 3 || rate.Marks[0].X != 3 {
		t.Errorf("an unknown outcome, or an event, is missing: %+v", rate)
	}
	if got := slow.Series[1].Points[2].Y; math.Abs(got-5) > 0.05 {
		t.Errorf("p99 is %v µs", got)
	}
	if last := dist.Series[0].Points; len(dist.Series) != 1 || last[len(last)-1].Y != 100 {
		t.Errorf("distribution %+v", dist)
	}
	if media := page.Charts[3].Series[0].Points; len(media) != 3 || media[2] != (plot.Point{X: 3, Y: 3}) {
		t.Errorf("write amplification %v", media)
	}
	other := filepath.Join(t.TempDir(), "other.fkr")
	record(t, other)
	text, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, text[:len(text)-20], 0o600); err != nil { // killed
		t.Fatal(err)
	}
	page, err = Draw([]string{file, other})
	if err != nil || len(page.Charts[0].Series) != 2 ||
		!strings.Contains(page.Lead, "other: the recording ends early") {
		t.Error(err, page)
	}
}

// Nothing that a file may hold ends the program.
func FuzzDraw(f *testing.F) {
	text, err := json.Marshal(aReportOf())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"database":"a","latency_unit":"us","throughput":1,` +
		`"calls":[{"name":"READ","latency":{"buckets":[[0,1,0],[1,2,3]]}}],` +
		`"series":[{"from":0,"to":1,"ok":{"READ":3}},{"from":1,"to":0}]}`))
	f.Add([]byte(`{"paper":"x","parts":[null,{"header":["a","b"],"rows":[[],[1,2,3],["1"]],"units":["%"],` +
		`"claims":[{"ours":"","printed":"1e999"}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		page, err := Draw([]string{file})
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := plot.HTML(&out, page); err != nil {
			t.Fatal(err)
		}
	})
}
