package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/magiconair/properties"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/ycsb"
)

// flags are upstream's, and --results, --seed, --pprof, --quiet and --monitor.
type flags struct {
	files, values     []string
	table             string
	threads, interval int
	target            int64
	seed              uint64
	results, pprof    string
	quiet, monitor    bool
}

func (f *flags) addCommon(cmd *cobra.Command) {
	cmd.Flags().StringSliceVarP(&f.files, "property_file", "P", nil,
		"property file, or a workload by its name, such as a or fusee-a; later ones win")
	cmd.Flags().StringArrayVarP(&f.values, "prop", "p", nil, "property as name=value; wins over files")
	cmd.Flags().StringVar(&f.table, "table", "usertable", "table name")
}

func (f *flags) addClient(cmd *cobra.Command) {
	f.addCommon(cmd)
	cmd.Flags().IntVar(&f.threads, "threads", 1, "worker threads")
	cmd.Flags().Int64Var(&f.target, "target", 0, "operations a second over all threads; 0: as many as can be")
	cmd.Flags().IntVar(&f.interval, "interval", 10, "seconds between status lines; 0: none")
	cmd.Flags().StringVar(&f.results, "results", "",
		"write the results to this file, as JSON: terms, latencies, and the series of intervals")
	cmd.Flags().Uint64Var(&f.seed, "seed", 0, "seed of the generators (default a new one, which is printed)")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false,
		"no properties and no status lines: the result lines, or what went wrong")
	cmd.Flags().BoolVar(&f.monitor, "monitor", false,
		"draw the pages of 'farkv monitor' in place of status lines; q leaves them and the run goes on")
	cmd.Flags().StringVar(&f.pprof, "pprof", "",
		"serve profiles at this address, of the loopback unless it names a host")
}

// properties merges files, -p values and flags, in that order.
func (f *flags) properties(cmd *cobra.Command) (*properties.Properties, error) {
	p := properties.NewProperties()
	for _, name := range f.files {
		q, err := propertyFile(name)
		if err != nil {
			return nil, err
		}
		p.Merge(q)
	}
	for _, v := range f.values {
		name, value, ok := strings.Cut(v, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, workloads.Usagef("-p %s: want name=value", v)
		}
		if err := checkName(name); err != nil {
			return nil, err
		}
		if err := ycsb.Set(p, name, value); err != nil {
			return nil, err
		}
	}
	for flag, v := range map[string][2]string{
		"table":    {"table", f.table},
		"threads":  {"threadcount", strconv.Itoa(f.threads)},
		"target":   {"target", strconv.FormatInt(f.target, 10)},
		"interval": {"measurement.interval", strconv.Itoa(f.interval)},
		"seed":     {"seed", strconv.FormatUint(f.seed, 10)},
		"pprof":    {"debug.pprof", f.pprof},
	} {
		if cmd.Flags().Changed(flag) {
			if err := ycsb.Set(p, v[0], v[1]); err != nil {
				return nil, err
			}
		}
	}
	return p, ycsb.Set(p, "command", cmd.Name())
}

// flagError is what to say of a flag that could not be read: some are properties.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && slices.Contains(knownNames(), unknown.GetSpecifiedName()) {
		return fmt.Errorf("%w: it is a property, so that it is set by -p %s=VALUE", err, unknown.GetSpecifiedName())
	}
	return command.FlagError(cmd, err)
}

func propertyFile(name string) (*properties.Properties, error) {
	w, err := ycsb.Read(name)
	if err != nil {
		return nil, workloads.Usagef("-P %v", err)
	}
	p, err := properties.Load(w.Text, properties.UTF8)
	if err != nil {
		return nil, workloads.Usagef("property file %s: %v", name, err)
	}
	return p, nil
}

// checkName refuses properties that nothing reads: a misspelt one would be measured as its default.
// Names with a dot are a driver's own, except for farkv's, which the driver checks.
func checkName(name string) error {
	if strings.Contains(name, ".") {
		return nil
	}
	if slices.Contains(knownNames(), name) {
		return nil
	}
	return workloads.Usagef("unknown property %s: %s'go-ycsb help properties' lists them", name,
		workloads.DidYouMean(name, knownNames()))
}

func knownNames() []string {
	return slices.Concat(runner.Ignored, runner.Names(runner.Properties), runner.Names(drivers.Properties))
}
