package runner

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/workloads"
)

// ReadSpec reads a workload from properties, and the file that fieldlengthhistogram names where they ask for it.
func ReadSpec(p *properties.Properties) (*workloads.Spec, error) {
	switch name := p.GetString("workload", "core"); name {
	case "core", "site.ycsb.workloads.CoreWorkload", "com.yahoo.ycsb.workloads.CoreWorkload":
	default:
		return nil, workloads.Misuse("unknown workload %q: there is only core", name)
	}
	s, err := workloads.Parse(p)
	if err != nil || s.FieldLengthDistribution != "histogram" {
		return s, err
	}
	text, err := os.ReadFile(p.GetString("fieldlengthhistogram", "hist.txt"))
	if err != nil {
		return nil, workloads.Misuse("property fieldlengthhistogram: %v", err)
	}
	return s, s.FieldLengths(string(text))
}

// Configure reads the properties that say how to run a workload, and the workload. Name, Database, Load and Progress
// are the caller's to fill in.
func Configure(p *properties.Properties) (Config, error) {
	spec, err := ReadSpec(p)
	if err != nil {
		return Config{}, err
	}
	r := settings{p: p}
	c := Config{
		Spec:     spec,
		Threads:  int(r.count("threadcount", 1, 1, maxThreads)),
		Target:   float64(r.count("target", 0, 0, 1e9)),
		MaxTime:  r.seconds("maxexecutiontime", 0),
		WarmUp:   r.seconds("warmuptime", 0),
		Interval: r.seconds("measurement.interval", 10),
		Seed:     r.seed(),
	}
	if r.err == nil && r.count("batch.size", 1, 1, 1<<30) > 1 {
		r.err = workloads.Misuse("batch.size: batches are not supported; leave it out")
	}
	if t := p.GetString("measurementtype", "histogram"); r.err == nil && t != "histogram" {
		r.err = workloads.Misuse("measurementtype=%s: only histogram is kept; --results writes all of it", t)
	}
	return c, r.err
}

// Bounded tells whether a run of c ends by itself; an error is a UseError that says what is missing.
func (c *Config) Bounded() error {
	if !c.Load && c.Spec.OperationCount == 0 && c.MaxTime == 0 {
		return workloads.Misuse("operationcount is not set: add -p operationcount=N, or -p maxexecutiontime=SECONDS")
	}
	return nil
}

type settings struct {
	p   *properties.Properties
	err error
}

func (r *settings) get(name string) (string, bool) {
	v, ok := r.p.Get(name)
	return strings.TrimSpace(v), ok
}

func (r *settings) fail(name, value, want string) {
	if r.err == nil {
		r.err = workloads.Misuse("property %s=%s: want %s", name, value, want)
	}
}

func (r *settings) count(name string, otherwise, least, most int64) int64 {
	v, ok := r.get(name)
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < least || n > most {
		r.fail(name, v, "a number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
	}
	return n
}

func (r *settings) seconds(name string, otherwise float64) time.Duration {
	v, ok := r.get(name)
	n, err := otherwise, error(nil)
	if ok {
		n, err = strconv.ParseFloat(v, 64)
	}
	if err != nil || !(n >= 0 && n < 1e9) {
		r.fail(name, v, "seconds")
	}
	return time.Duration(n * float64(time.Second))
}

// seed returns the seed that is asked for, or a new one, which the properties then name.
func (r *settings) seed() uint64 {
	if v, ok := r.get("seed"); ok {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			r.fail("seed", v, "a number that is not negative")
		}
		return n
	}
	n := rand.Uint64()
	if _, _, err := r.p.Set("seed", strconv.FormatUint(n, 10)); err != nil {
		r.fail("seed", "", err.Error())
	}
	return n
}
