package runner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/farkv/farkv/workloads"
)

// Version is the version of the results file that this package writes. Readers refuse newer ones; a
// field that is added does not change it.
const Version = 1

// Result is what a run measured. It is the content of a results file. Latencies are microseconds.
type Result struct {
	Version    int               `json:"version"`
	Database   string            `json:"database"`
	Terms      *Terms            `json:"terms,omitempty"` // nil: they are not known
	Phase      string            `json:"phase"`           // load or run
	Started    time.Time         `json:"started"`
	Seconds    float64           `json:"seconds"` // measured, without the warm-up
	Threads    int               `json:"threads"`
	Target     float64           `json:"target,omitempty"` // operations a second that were asked for
	Seed       uint64            `json:"seed"`
	Properties map[string]string `json:"properties,omitempty"`

	Operations  uint64  `json:"operations"` // a read-modify-write is one
	Failed      uint64  `json:"failed"`
	Throughput  float64 `json:"throughput"` // operations a second
	Interrupted bool    `json:"interrupted,omitempty"`
	Problem     string  `json:"problem,omitempty"` // what went wrong at the end

	Unit     string     `json:"latency_unit"` // us
	Calls    []Call     `json:"calls"`        // those that were made; TOTAL, the last, is all but READ_MODIFY_WRITE
	Counters *Counters  `json:"counters,omitempty"`
	CPU      *CPU       `json:"cpu,omitempty"`    // nil: it is not known
	Device   *Device    `json:"device,omitempty"` // nil: verbs go over none
	Series   []Interval `json:"series,omitempty"` // the run in intervals, of which the last may be shorter

	first, gone error
}

// Counters count the verbs of a run, warm-up included; see rdma.Counters.
type Counters struct {
	Trips      uint64 `json:"trips"`
	Doorbells  uint64 `json:"doorbells"`
	Reads      uint64 `json:"reads"`
	Writes     uint64 `json:"writes"`
	Atomics    uint64 `json:"atomics"`
	Sends      uint64 `json:"sends,omitempty"`
	Calls      uint64 `json:"calls"`
	BytesRead  uint64 `json:"bytes_read"`
	BytesWrote uint64 `json:"bytes_wrote"`
}

// Device counts what a run asked of an RDMA device, warm-up, opening and closing included.
type Device struct {
	Name  string `json:"name"`
	Port  int    `json:"port"`
	Calls uint64 `json:"libibverbs_calls"` // into libibverbs, for verbs
	Waits uint64 `json:"device_waits"`     // sleeps until the device told of a completion
	// Packets of the port, those of other processes of this machine too; 0: the device does not
	// count them.
	Sent     uint64 `json:"packets_sent,omitempty"`
	Received uint64 `json:"packets_received,omitempty"`
}

// Call is one kind of call.
type Call struct {
	Name       string   `json:"name"`
	Throughput float64  `json:"throughput"` // calls a second that ended well
	Latency    Latency  `json:"latency"`
	Failed     *Latency `json:"failed,omitempty"`
	Error      string   `json:"error,omitempty"` // the first failure
	Trips      float64  `json:"trips_per_call,omitempty"`
	// FailedTrips are those of a call that failed.
	FailedTrips float64 `json:"trips_per_failed_call,omitempty"`
}

// Latency is a distribution of latencies in microseconds.
type Latency struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99_9"`
	P9999 float64 `json:"p99_99"`
	// Buckets are [from, to, count] of durations of at least from and less than to, for reports to
	// draw.
	Buckets [][3]float64 `json:"buckets,omitempty"`
}

// Microseconds returns d in microseconds.
func Microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Summarize returns h in microseconds, without its buckets. nil is empty.
func Summarize(h *workloads.Histogram) Latency {
	if h == nil {
		return Latency{}
	}
	p := func(x float64) float64 { return Microseconds(h.Percentile(x)) }
	return Latency{
		Count: h.Count(), Mean: h.Mean() / 1e3, Min: Microseconds(h.Min()), Max: Microseconds(h.Max()),
		P50: p(50), P90: p(90), P95: p(95), P99: p(99), P999: p(99.9), P9999: p(99.99),
	}
}

func distribution(h *workloads.Histogram) Latency {
	l := Summarize(h)
	if h != nil {
		h.Buckets(func(from, to time.Duration, n uint64) bool {
			l.Buckets = append(l.Buckets, [3]float64{Microseconds(from), Microseconds(to), float64(n)})
			return true
		})
	}
	return l
}

func newResult(c *Config, t *workloads.Tally, took time.Duration) *Result {
	measured := max(took-c.WarmUp, 1)
	r := &Result{
		Version: Version, Database: c.Name, Phase: "run", Started: time.Now().Add(-took).Round(time.Millisecond),
		Seconds: measured.Seconds(), Threads: c.Threads, Target: c.Target, Seed: c.Seed,
		Operations: t.Operations, Failed: t.Failed, Unit: "us",
	}
	if c.Load {
		r.Phase = "load"
	}
	r.Throughput = float64(t.Operations) / r.Seconds
	for op := range workloads.Ops {
		m := &t.Calls[op]
		call := Call{Name: op.String(), Latency: distribution(m.OK)}
		if m.Failed != nil && m.Failed.Count() > 0 {
			failed := distribution(m.Failed)
			call.Failed, call.Error = &failed, m.Err.Error()
			call.FailedTrips = float64(m.FailedTrips) / float64(failed.Count)
			if r.first == nil {
				r.first = fmt.Errorf("%s: %w", op, m.Err)
			}
		}
		if call.Latency.Count > 0 || call.Failed != nil {
			r.add(call, m.Trips)
		}
	}
	if total, trips := t.Total(); total.Count() > 0 {
		r.add(Call{Name: "TOTAL", Latency: Summarize(&total)}, trips)
	}
	return r
}

func (r *Result) add(c Call, trips uint64) {
	c.Throughput = float64(c.Latency.Count) / r.Seconds
	if c.Latency.Count > 0 {
		c.Trips = float64(trips) / float64(c.Latency.Count)
	}
	r.Calls = append(r.Calls, c)
}

// CPU is the processor time of an operation in microseconds, the warm-up and opening included: what
// this process used, and what the memory nodes' processes did.
type CPU struct {
	Client float64 `json:"client_us"`
	Nodes  float64 `json:"nodes_us"`
}

// Call returns what was measured of the kind of call with that name, or nil.
func (r *Result) Call(name string) *Call {
	for i := range r.Calls {
		if r.Calls[i].Name == name {
			return &r.Calls[i]
		}
	}
	return nil
}

// Err returns the first failure of a call, or nil. Results read from a file have none.
func (r *Result) Err() error { return r.first }

// Gone returns why the run ended early; nil: its database was there to the end. Results read from a
// file tell it as their Problem.
func (r *Result) Gone() error { return r.gone }

// bucket is three numbers of an array, each on a line of its own. No string of JSON has such lines.
var bucket = regexp.MustCompile(`\[\n\s*([-+.\de]+),\n\s*([-+.\de]+),\n\s*([-+.\de]+)\n\s*\]`)

// entry is one of the series, as the encoder indents it. No string of JSON has such lines.
var entry = regexp.MustCompile(`(?m)^  \{\n   "from": (?s:.*?)\n  \}`)

// Encode returns the content of a results file, with a line for each bucket and each interval.
func (r *Result) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", " ")
	b = bucket.ReplaceAll(b, []byte("[$1, $2, $3]"))
	b = entry.ReplaceAllFunc(b, func(lines []byte) []byte {
		return append([]byte("  "), bytes.Join(bytes.Fields(lines), []byte(" "))...)
	})
	return append(b, '\n'), err
}

// WriteFile writes a results file, as Save does.
func (r *Result) WriteFile(name string) error {
	b, err := r.Encode()
	if err != nil {
		return err
	}
	return Save(name, b)
}

// ReadResult reads a results file.
func ReadResult(in io.Reader) (*Result, error) {
	r := new(Result)
	if err := json.NewDecoder(in).Decode(r); err != nil {
		return nil, fmt.Errorf("results file: %w", err)
	}
	if r.Version < 1 || r.Version > Version {
		return nil, fmt.Errorf("results file has version %d; this program reads 1 to %d", r.Version, Version)
	}
	return r, nil
}
