package runner

import (
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/workloads"
)

// ReadSpec reads a workload from properties, and the file that fieldlengthhistogram names where
// they ask for it.
func ReadSpec(p *properties.Properties) (*workloads.Spec, error) {
	switch name := p.GetString("workload", "core"); name {
	case "core", "site.ycsb.workloads.CoreWorkload", "com.yahoo.ycsb.workloads.CoreWorkload":
	default:
		return nil, workloads.Usagef("unknown workload %q: there is only core", name)
	}
	s, err := workloads.Parse(p)
	if err != nil || s.FieldLengthDistribution != "histogram" {
		return s, err
	}
	text, err := os.ReadFile(p.GetString("fieldlengthhistogram", "hist.txt"))
	if err != nil {
		return nil, workloads.Usagef("property fieldlengthhistogram: %v", err)
	}
	return s, s.FieldLengths(string(text))
}

// Configure reads the properties that say how to run a workload, and the workload. Name, Database,
// Load and Progress are the caller's to fill in.
func Configure(p *properties.Properties) (Config, error) {
	spec, err := ReadSpec(p)
	if err != nil {
		return Config{}, err
	}
	r := &workloads.Reader{Properties: p}
	c := Config{
		Spec:     spec,
		Threads:  int(r.Count("threadcount", 1, 1, maxThreads)),
		Target:   float64(r.Count("target", 0, 0, 1e9)),
		MaxTime:  secondsOf(r, "maxexecutiontime", 0),
		WarmUp:   secondsOf(r, "warmuptime", 0),
		Interval: secondsOf(r, "measurement.interval", 10*time.Second),
		Seed:     seed(r, p),
	}
	if r.Err == nil && r.Count("batch.size", 1, 1, 1<<30) > 1 {
		r.Err = workloads.Usagef("batch.size: batches are not supported; leave it out")
	}
	if t := p.GetString("measurementtype", "histogram"); r.Err == nil && t != "histogram" {
		r.Err = workloads.Usagef("measurementtype=%s: only histogram is kept; --results writes all of it", t)
	}
	return c, r.Err
}

// Bounded reports whether a run of c ends by itself; an error is a UsageError that says what is
// missing.
func (c *Config) Bounded() error {
	if !c.Load && c.Spec.OperationCount == 0 && c.MaxTime == 0 {
		return workloads.Usagef("operationcount is not set: add -p operationcount=N, or -p maxexecutiontime=SECONDS")
	}
	return nil
}

// secondsOf returns a time that a property gives in seconds.
func secondsOf(r *workloads.Reader, name string, def time.Duration) time.Duration {
	return workloads.Parsed(r, name, def, func(text string) (time.Duration, string) {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n >= 0 && n < 1e9) {
			return 0, "seconds"
		}
		return time.Duration(n * float64(time.Second)), ""
	})
}

// seed returns the seed that is asked for, or a new one, which the properties then name.
func seed(r *workloads.Reader, p *properties.Properties) uint64 {
	if _, ok := p.Get("seed"); ok {
		return workloads.Parsed(r, "seed", 0, func(text string) (uint64, string) {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return 0, "a number that is not negative"
			}
			return n, ""
		})
	}
	n := rand.Uint64()
	if _, _, err := p.Set("seed", strconv.FormatUint(n, 10)); err != nil {
		r.Fail("seed", "", err.Error())
	}
	return n
}
