package simulate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/ycsb"
)

// Workload names a workload and what is changed about it.
type Workload struct {
	// Name is what ycsb.Find takes. YCSB's own workloads are its mixes with its distributions of
	// the keys, over pairs as the papers have them: 100,000 of 1,024 bytes, one field, written
	// whole.
	Name       string
	Records    int64    // 0: the workload's own
	PairBytes  int      // of a key with its value; 0: the workload's own
	Properties []string // name=value, which count more than all others
	ShortKeys  int      // see workloads.Spec
}

const (
	paperRecords = 100_000
	paperPair    = 1024
	keyBytes     = 23 // of a key, such as user and 19 digits
	keyDigits    = 19
)

// elsewhere are properties for which a simulation has something of its own.
var elsewhere = map[string]string{
	"operationcount": "--ops", "threadcount": "--clients", "maxexecutiontime": "--duration", "warmuptime": "--warmup",
	"seed": "--seed", "measurement.interval": "--interval",
}

// Read returns the properties of w. Errors are workloads.UsageErrors.
func (w *Workload) Read() (*properties.Properties, error) {
	file, err := ycsb.Find(w.Name)
	if err != nil {
		return nil, err
	}
	records, pair := w.Records, w.PairBytes
	if file.Core != "" {
		records, pair = cmp.Or(records, paperRecords), cmp.Or(pair, paperPair)
	}
	anew := map[string]string{}
	if records > 0 {
		anew["recordcount"] = strconv.FormatInt(records, 10)
	}
	if file.Core != "" {
		anew["operationcount"] = "0"
	}
	if pair > 0 {
		if pair <= keyBytes {
			return nil, workloads.Usagef("pairs of %d bytes: a key alone has %d", pair, keyBytes)
		}
		anew["fieldcount"], anew["fieldlength"], anew["zeropadding"] = "1", strconv.Itoa(pair-keyBytes),
			strconv.Itoa(keyDigits)
	}
	for _, text := range w.Properties {
		name, value, ok := strings.Cut(text, "=")
		if err := check(name, ok); err != nil {
			return nil, err
		}
		anew[name] = value
	}
	p, err := file.Properties(anew)
	if err != nil {
		return nil, err
	}
	if sizes, _ := p.Get("objectsizes"); w.PairBytes > 0 && sizes != "" && sizes != "none" {
		return nil, workloads.Usagef("pairs of %d bytes and objectsizes=%s: want one of them", w.PairBytes, sizes)
	}
	return p, nil
}

// check refuses what nothing would read.
func check(name string, hasValue bool) error {
	switch flag := elsewhere[name]; {
	case !hasValue || name == "":
		return workloads.Usagef("property %q: want name=value", name)
	case flag != "":
		return workloads.Usagef("property %s: a simulation has %s for it", name, flag)
	case !slices.Contains(runner.Names(runner.Properties), name):
		return workloads.Usagef("unknown property %s: 'go-ycsb help properties' lists them", name)
	}
	return nil
}

// Title says what a workload is, in a line.
func (w *Workload) Title() string {
	file, err := ycsb.Find(w.Name)
	if err != nil {
		return ""
	}
	return file.Title()
}
