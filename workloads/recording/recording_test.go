package recording

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/telemetry"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// example is sample i of a recording of two samples a second.
func example(i int) *telemetry.Sample {
	s := &telemetry.Sample{
		At: began.Add(time.Duration(i) * time.Second / 2), Pool: "shm:farkv", Store: "fusee", MayDie: 1,
		Nodes: []telemetry.Node{{ID: 0, Role: "member", Up: true, Counts: &telemetry.NodeCounts{Reads: uint64(i)}}},
		Fill:  []telemetry.Fill{{Of: "index slots", Used: uint64(i), All: 1000}},
	}
	p := telemetry.Process{Host: "a", PID: 7, Name: "fusee", Began: began, At: s.At}
	p.Ops[telemetry.Get] = telemetry.Ops{OK: uint64(i) * 3, Latency: latencies(i)}
	s.Processes = append(s.Processes, p)
	if i%100 == 50 {
		s.Events = []telemetry.Event{{At: s.At, What: "expelled", Node: 1, Text: fmt.Sprintf("event %d", i)}}
	}
	return s
}

func latencies(n int) *telemetry.Histogram {
	h, r := new(telemetry.Histogram), rand.New(rand.NewPCG(1, 2))
	for range n {
		h.Record(time.Duration(r.IntN(100_000)))
	}
	text, _ := json.Marshal(h) // as it is read: with the bounds of its buckets as least and most
	_ = json.Unmarshal(text, h)
	return h
}

func record(t testing.TB, samples int) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, "a test")
	if err != nil {
		t.Fatal(err)
	}
	for i := range samples {
		if err := w.Add(example(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestReadsWhatWasWritten(t *testing.T) {
	const samples = 3*perMember + 5
	r, err := NewReader(bytes.NewReader(record(t, samples)))
	if err != nil || r.Problem() != "" || r.Len() != samples || r.Header() != (Header{Version, "a test"}) {
		t.Fatal(err, r)
	}
	n := 0
	for s, err := range r.Samples() {
		if err != nil || !reflect.DeepEqual(s, example(n)) {
			t.Fatalf("sample %d: %v\n%+v\n%+v", n, err, s, example(n))
		}
		n++
	}
	if n != samples || len(r.members) != 4 {
		t.Errorf("%d of %d samples, %d members", n, samples, len(r.members))
	}
	if e := r.Events(); len(e) != 2 || e[1].Text != "event 150" {
		t.Errorf("events: %v", e)
	}
	for range 300 {
		i := rand.IntN(samples)
		if s, err := r.Sample(i); err != nil || !s.At.Equal(example(i).At) || !r.Time(i).Equal(s.At) {
			t.Fatalf("sample %d: %v, %v", i, s, err)
		}
	}
	for _, i := range []int{-1, samples} {
		if s, err := r.Sample(i); err == nil {
			t.Errorf("sample %d: %v", i, s)
		}
	}
}

func TestFindByTime(t *testing.T) {
	r, err := NewReader(bytes.NewReader(record(t, 100)))
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[time.Duration]int{
		-time.Hour: 0, 0: 0, 499 * time.Millisecond: 0, 500 * time.Millisecond: 1, 20*time.Second + 1: 40,
		time.Hour: 99,
	} {
		if got := r.Find(began.Add(at)); got != want {
			t.Errorf("%v: sample %d, want %d", at, got, want)
		}
	}
	empty, err := NewReader(bytes.NewReader(record(t, 0)))
	if err != nil || empty.Find(began) != 0 || empty.Len() != 0 {
		t.Error(err, empty)
	}
}

// A recording that was cut anywhere has the samples that were whole, and says so.
func TestCutAnywhere(t *testing.T) {
	var out bytes.Buffer
	w, err := NewWriter(&out, "a test")
	if err != nil {
		t.Fatal(err)
	}
	begins := out.Len()
	var ends []int // of samples, in bytes
	for i := range perMember + 10 {
		if err := w.Add(example(i)); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, out.Len())
	}
	whole := out.Len()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for cut := begins; cut < out.Len(); cut += 7 {
		want := 0
		for want < len(ends) && ends[want] <= cut {
			want++
		}
		r, err := NewReader(bytes.NewReader(out.Bytes()[:cut]))
		if err != nil || r.Len() < want || r.Problem() == "" && cut < whole &&
			(cut < ends[perMember-1] || cut > ends[perMember-1]+10) {
			t.Fatalf("cut at %d: %d samples of %d, %q, %v", cut, r.Len(), want, r.Problem(), err)
		}
		if want > 0 {
			if s, err := r.Sample(want - 1); err != nil || !s.At.Equal(example(want-1).At) {
				t.Fatalf("cut at %d: %v", cut, err)
			}
		}
	}
}

func TestFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "run.fkr")
	w, err := Create(name, "a test")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(example(1)); err != nil {
		t.Fatal(err)
	}
	during, err := Open(name) // while it is written
	if err != nil || during.Len() != 1 || during.Problem() == "" {
		t.Fatal(err, during)
	}
	if err := during.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Add(example(2)) == nil {
		t.Error("a closed recording took a sample")
	}
	after, err := Open(name)
	if err != nil || after.Problem() != "" {
		t.Fatal(err, after)
	}
	_ = after.Close()
	if _, err := Open(filepath.Dir(name)); err == nil {
		t.Error("a folder was opened")
	}
}

// compressed is a recording of those lines.
func compressed(lines ...string) []byte {
	var out bytes.Buffer
	gz := gzip.NewWriter(&out)
	for _, l := range lines {
		_, _ = io.WriteString(gz, l+"\n")
	}
	_ = gz.Close()
	return out.Bytes()
}

const head = `{"farkv_recording":1,"by":"x"}`

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":     {nil, "compressed by gzip"},
		"text":      {[]byte("throughput"), "compressed by gzip"},
		"other":     {compressed("hello"), "first line"},
		"json":      {compressed(`{"version":1}`), "first line"},
		"newer":     {compressed(`{"farkv_recording":2}`), "version 2"},
		"long":      {compressed(strings.Repeat("x", maxLine+2)), "more than"},
		"truncated": {compressed(head)[:8], "unexpected EOF"},
	} {
		if _, err := NewReader(bytes.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a stranger's recording claims costs no more than its bound.
func TestBounds(t *testing.T) {
	many := `{"processes":[` + strings.Repeat(`{},`, maxTold) + `{}]}`
	r, err := NewReader(bytes.NewReader(compressed(head, many)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Sample(0); err == nil || !strings.Contains(err.Error(), "processes") {
		t.Error(err)
	}
	r, err = NewReader(bytes.NewReader(compressed(head, `{}`, strings.Repeat(" ", maxLine+2), `{}`)))
	if err != nil || r.Len() != 1 || !strings.Contains(r.Problem(), "more than") {
		t.Error(err, r)
	}
	big := example(1)
	big.Problem = strings.Repeat("x", maxLine)
	if w, err := NewWriter(io.Discard, ""); err != nil || w.Add(big) == nil {
		t.Error("a Writer wrote what no Reader takes")
	}
}

func TestTextsAreHarmless(t *testing.T) {
	long, _ := json.Marshal(strings.Repeat("é", maxText))
	line := `{"pool":"\u001b[2Jx\u009b","nodes":[{"pmem":{"problem":"a\nb\u202e"}}],"store":` + string(long) +
		`,"events":[{"text":"\u0007ring"}],"processes":[{"own":[{"name":"\u0000n"}]}]}`
	r, err := NewReader(bytes.NewReader(compressed(`{"farkv_recording":1,"by":"\u001bx"}`, line)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Sample(0)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{
		r.Header().By, s.Pool, s.Nodes[0].PMem.Problem, s.Events[0].Text, s.Processes[0].Own[0].Name,
		r.Events()[0].Text,
	}
	if want := []string{"x", "[2Jx", "ab", "ring", "n", "ring"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
	if n := len(s.Store); n > maxText+len("…") {
		t.Errorf("a text of %d bytes", n)
	}
}

// The clock that went back does not confuse the search.
func TestClockWentBack(t *testing.T) {
	r, err := NewReader(bytes.NewReader(compressed(head, `{"at":"2026-03-01T12:00:05Z"}`,
		`{"at":"2026-03-01T12:00:01Z"}`, `{"at":"2026-03-01T12:00:06Z"}`)))
	if err != nil || r.Find(began.Add(5*time.Second)) != 1 || r.Find(began.Add(7*time.Second)) != 2 {
		t.Error(err, r.times)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(record(f, 3), true)
	f.Add([]byte(head+"\n{\"at\":\"2026-03-01T12:00:05Z\",\"nodes\":[{}],"+
		"\"processes\":[{\"ops\":[{\"latency\":{\"buckets\":[[3,4]]}}]}]}\n"), false)
	f.Fuzz(func(t *testing.T, file []byte, raw bool) {
		if !raw {
			file = compressed(string(file))
		}
		r, err := NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		n := 0
		for s, err := range r.Samples() {
			if err == nil && s.At.After(r.Time(n)) {
				t.Errorf("sample %d is of %v, not %v", n, s.At, r.Time(n))
			}
			n++
		}
	})
}
