package plot

import (
	"bytes"
	"encoding/xml"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files")

// examples are charts of each kind.
func examples() map[string][]Chart {
	waves := Series{Name: "get"}
	slow := Series{Name: "update", Kind: Steps}
	for i := range 5000 {
		y := 1e5 + 3e4*math.Sin(float64(i)/400)
		if i == 2500 {
			y = 0 // one point that thinning has to keep
		}
		waves.Points = append(waves.Points, Point{X: float64(i) / 50, Y: y})
		if i%500 == 0 {
			slow.Points = append(slow.Points, Point{X: float64(i) / 50, Y: 5e4})
		}
	}
	return map[string][]Chart{
		"time": {{
			Title: "Throughput over time", Note: "a note", X: Axis{Label: "time", Unit: Seconds}, Y: Axis{Unit: Rate},
			Series: []Series{waves, slow},
			Marks: []Mark{{20, "node 1 expelled"}, {20.5, "node 3 takes its place"}, {80, "whole again"},
				{1e9, "never"}},
		}},
		"cdf": {{
			Title: "Latency", X: Axis{Label: "latency", Unit: Micros, Log: true}, Y: Axis{Unit: Percent, Most: 100},
			Series: []Series{{Name: "fusee", Kind: Steps, Points: []Point{{X: 0, Y: 0}, {X: 1.5, Y: 10}, {X: 12, Y: 90},
				{X: 40_000, Y: 100}}}},
		}},
		"bars": {{
			Title: "Beside the paper", X: Axis{Names: []string{"pairs-512", "pairs-256"}}, Y: Axis{Unit: Percent},
			Series: []Series{
				{Name: "here", Kind: Bars, Points: []Point{{X: 0, Y: 99.75}, {X: 1, Y: -12}}},
				{Name: "there", Kind: Bars, Points: []Point{{X: 0, Y: 60}, {X: 1, Y: 30}}},
				{Name: "paper", Kind: Dots, Points: []Point{{X: 0, Y: 44.1, Text: "Figure 12"}, {X: 1, Y: 55.9}}},
			},
		}, {Title: "nothing"}},
	}
}

func TestGolden(t *testing.T) {
	for name, charts := range examples() {
		for _, form := range []string{".svg", ".html", ".csv"} {
			if name == "time" && form == ".csv" {
				continue // it is not thinned
			}
			var got, again bytes.Buffer
			if err := Write(&got, "x"+form, &Page{Title: name, Lead: "a lead", Charts: charts}); err != nil {
				t.Fatal(err)
			}
			_ = Write(&again, "X"+strings.ToUpper(form), &Page{Title: name, Lead: "a lead", Charts: charts})
			if !bytes.Equal(got.Bytes(), again.Bytes()) {
				t.Errorf("%s%s differs between two runs", name, form)
			}
			file := filepath.Join("testdata", name+form)
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(file); err != nil || !bytes.Equal(want, got.Bytes()) {
				t.Errorf("%s is not what is drawn: look at it, and write it by -update (%v)", file, err)
			}
			if form != ".csv" {
				wellFormed(t, got.Bytes())
			}
			for _, foreign := range []string{"<script", "@import", "url(", "src=", "href=", "NaN", "Inf"} {
				if bytes.Contains(got.Bytes(), []byte(foreign)) {
					t.Errorf("%s has %s", file, foreign)
				}
			}
		}
	}
	if Write(io.Discard, "x.png", &Page{}) == nil || Writable("html") {
		t.Error("a picture was written")
	}
}

type fataler interface{ Fatalf(string, ...any) }

func wellFormed(t fataler, text []byte) {
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
	}
}

// Whatever names and numbers a file has, the drawing is well-formed and has no number that is none.
func TestAnyChartIsWellFormed(t *testing.T) {
	text := rapid.OneOf(rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"</text><script>", "]]>", "&amp;", "\"'<>", "\x00\x1b[2J", "=1+1"}))
	number := rapid.OneOf(rapid.Float64(), rapid.Float64Range(-10, 10),
		rapid.SampledFrom([]float64{0, math.NaN(), math.Inf(1), -1e308, 5e-324}))
	rapid.Check(t, func(t *rapid.T) {
		axis := func(label string) Axis {
			return Axis{Label: text.Draw(t, label),
				Unit: Unit(rapid.SampledFrom([]string{"", "op/s", "s", "us", "%", "B", "<"}).Draw(t, "unit")),
				Log:  rapid.Bool().Draw(t, "log"), Most: number.Draw(t, "most")}
		}
		c := Chart{Title: text.Draw(t, "title"), Note: text.Draw(t, "note"), X: axis("x"), Y: axis("y")}
		if rapid.Bool().Draw(t, "named") {
			c.X.Names, c.X.Log = rapid.SliceOfN(text, 1, 12).Draw(t, "names"), false
		}
		for range rapid.IntRange(0, 10).Draw(t, "series") {
			s := Series{Name: text.Draw(t, "name"), Kind: Kind(rapid.IntRange(0, 3).Draw(t, "kind"))}
			for range rapid.IntRange(0, 8).Draw(t, "points") {
				s.Points = append(s.Points, Point{number.Draw(t, "px"), number.Draw(t, "py"), text.Draw(t, "text")})
			}
			c.Series = append(c.Series, s)
		}
		for range rapid.IntRange(0, 12).Draw(t, "marks") {
			c.Marks = append(c.Marks, Mark{number.Draw(t, "at"), text.Draw(t, "what")})
		}
		var svg, html, csv bytes.Buffer
		if SVG(&svg, c) != nil || HTML(&html, &Page{Title: c.Title, Charts: []Chart{c}}) != nil || CSV(&csv, c) != nil {
			t.Fatalf("a buffer failed")
		}
		wellFormed(t, svg.Bytes())
		wellFormed(t, html.Bytes())
		d := xml.NewDecoder(bytes.NewReader(svg.Bytes()))
		for token, err := d.Token(); err == nil; token, err = d.Token() {
			e, ok := token.(xml.StartElement)
			for _, a := range e.Attr {
				if ok && a.Name.Local != "class" &&
					(strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf")) {
					t.Fatalf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
	})
}

// Thinning loses no extreme of any column, keeps the order, and has at most four points a column.
func TestThinKeepsExtremes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var points []Point
		x := 0.0
		for _, y := range rapid.SliceOf(rapid.Float64Range(-100, 100)).Draw(t, "y") {
			x += rapid.Float64Range(0, 1).Draw(t, "dx")
			points = append(points, Point{X: x, Y: y})
		}
		column := func(p Point) int { return int(p.X) }
		ends := func(points []Point) (low, high map[int]float64, n map[int]int) {
			low, high, n = map[int]float64{}, map[int]float64{}, map[int]int{}
			for _, p := range points {
				k := column(p)
				if n[k]++; n[k] == 1 {
					low[k], high[k] = p.Y, p.Y
				}
				low[k], high[k] = min(low[k], p.Y), max(high[k], p.Y)
			}
			return low, high, n
		}
		got := thin(points, column)
		low, high, _ := ends(points)
		gotLow, gotHigh, n := ends(got)
		for k := range low {
			if gotLow[k] != low[k] || gotHigh[k] != high[k] || n[k] > 4 {
				t.Fatalf("column %d: %v to %v became %v to %v, %d points", k, low[k], high[k], gotLow[k],
					gotHigh[k], n[k])
			}
		}
		for i := 1; i < len(got); i++ {
			if got[i].X < got[i-1].X {
				t.Fatalf("the order is lost at %d", i)
			}
		}
	})
}

func TestTicksAreReadable(t *testing.T) {
	for _, c := range []struct {
		axis      Axis
		low, high float64
		want      string
	}{
		{Axis{Unit: Micros, Log: true}, 7, 4000, "10 µs 100 µs 1 ms"},
		{Axis{Unit: Micros, Log: true}, 12, 40, "20 µs 30 µs 40 µs"},
		{Axis{Unit: Rate}, 0, 88073, "0 20 k/s 40 k/s 60 k/s 80 k/s"},
		{Axis{Unit: Percent}, -12, 99, "0 % 20 % 40 % 60 % 80 %"},
		{Axis{Unit: Seconds}, 0, 0.004, "0 1 ms 2 ms 3 ms 4 ms"},
		{Axis{}, 0, 0, "0 0.2 0.4 0.6 0.8 1"},
	} {
		var got []string
		for _, tick := range newScale(&c.axis, c.low, c.high, 0, 100, false).ticks {
			if tick.text != "" {
				got = append(got, tick.text)
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%v to %v: %s, want %s", c.low, c.high, text, c.want)
		}
	}
}
