package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"syscall"

	"github.com/magiconair/properties"
	"github.com/spf13/cobra"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/version"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
)

// newClientCommand makes the command load or run.
func newClientCommand(name string) *cobra.Command {
	f := new(flags)
	operations := ""
	long := "YCSB's load phase puts the records of a workload into a database, and makes the pool where there is none."
	if name == drivers.Run {
		long = "YCSB's run phase carries out the operations of a workload, on the records that were loaded, and " +
			"measures them."
		operations = " -p operationcount=1000000"
	}
	cmd := &cobra.Command{
		Use:   name + " DATABASE",
		Short: "YCSB's " + name + " phase",
		Long:  long,
		Example: "  go-ycsb " + name + " fusee -P workloada -p recordcount=100000" + operations + " --threads 8\n" +
			"  go-ycsb help fusee\n  go-ycsb help properties\n  go-ycsb help workloads",
		Args: oneDatabase,
		RunE: func(cmd *cobra.Command, args []string) error { return f.client(cmd, args[0]) },
	}
	f.addClient(cmd)
	return cmd
}

func oneDatabase(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s needs one database, not %d: there are %s", cmd.Name(), len(args),
			strings.Join(drivers.Names(), ", "))
	}
	return drivers.Known(args[0])
}

// client loads or runs a workload and prints what was measured.
func (f *flags) client(cmd *cobra.Command, name string) error {
	p, err := f.properties(cmd)
	if err != nil {
		return err
	}
	c, err := runner.Configure(p)
	if err != nil {
		return err
	}
	c.Name, c.Load = name, cmd.Name() == drivers.Load
	if err := errors.Join(c.Bounded(), f.canMonitor(cmd, name)); err != nil {
		return err
	}
	out, err := newOutput(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.results, p)
	if err != nil {
		return err
	}
	if f.quiet {
		out.info = io.Discard
	}
	stopProfiles, err := serveProfiles(p, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer stopProfiles()
	m, err := serveMetrics(p, cmd.ErrOrStderr())
	if err != nil {
		return status(err)
	}
	defer m.stop()

	db, err := drivers.Create(name, p)
	if err != nil {
		return status(err)
	}
	if c.Database, err = m.observe(db); err != nil {
		return status(errors.Join(err, db.Close()))
	}
	c.Progress = out.progress
	if !p.GetBool("silence", true) {
		c.Failed = out.failed
	}
	holds, made := drivers.About(db)
	terms := drivers.Terms(db)
	terms.Store, terms.Records, terms.Threads = name, c.Spec.RecordCount, c.Threads
	terms.Commit, terms.Wire = version.Commit(), version.Wire
	out.properties(p)
	if made != "" {
		fmt.Fprintln(out.info, made)
	}
	fmt.Fprintln(out.info, terms)
	all, asked := share(db), deviceOf(db)
	pages, err := f.show(cmd, out, db, terms.Pool)
	if err != nil {
		return status(errors.Join(err, db.Close()))
	}
	res, err := runner.Run(cmd.Context(), c)
	pages.close() // before the pool is, and before the result is printed
	all()
	if res != nil {
		res.Device = deviceOf(db).since(asked)
	}
	m.stop() // before the pool is closed, of which it tells
	if e := db.Close(); err == nil && e != nil && (res == nil || res.Gone() == nil) {
		err = fmt.Errorf("close %s: %w", name, e)
	}
	if res != nil {
		res.Terms, res.Properties = &terms, visible(p)
		maps.Copy(res.Properties, holds)
		err = errors.Join(err, finish(out, res))
	}
	return status(err)
}

// finish prints the result and reports whether it is a good one.
func finish(out *output, res *runner.Result) error {
	if err := errors.Join(out.save(res), out.result(res)); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	switch {
	case res.Gone() != nil:
		return fmt.Errorf("%w (the results are those of %d operations, %d of which failed)", res.Gone(), res.Operations,
			res.Failed)
	case res.Interrupted:
		err := fmt.Errorf("interrupted: the results are those of %d operations", res.Operations)
		if res.Phase == drivers.Load {
			err = fmt.Errorf("interrupted: %s holds %d of the records: load anew with -p dropdata=true", res.Database,
				res.Operations-res.Failed)
		}
		return &failure{exitInterrupted, err}
	case res.Failed > 0:
		return fmt.Errorf("%d of %d operations failed; the first: %s", res.Failed, res.Operations,
			explain(res.Err(), out.pool))
	case res.Problem != "":
		return errors.New(res.Problem)
	}
	return nil
}

// status makes a failure of everything that is not the user's mistake.
func status(err error) error {
	var f *failure
	if err == nil || runner.Misused(err) || errors.As(err, &f) {
		return err
	}
	return &failure{exitFailed, err}
}

// explain tells what became of a failed operation, and what can be done about it. Where a cause
// says enough, how it came about is left to the results file. Hints name the pool.
func explain(err error, pool string) string {
	op, _, _ := strings.Cut(err.Error(), ": ")
	of := func(errs ...error) []error { return errs }
	return workloads.Explain(err, []workloads.Hint{
		{Of: of(syscall.ENOSPC), Instead: op + ": no space left in the folder of pools",
			Say: "make room there, or load with -p dropdata=true and a lower farkv.memory or recordcount"},
		{Of: of(client.ErrFull), Instead: op + ": the pool is full", // the results file has the cause
			Say: "load a larger one with -p dropdata=true and a higher farkv.memory or recordcount, which sizes the " +
				"index, too"},
		{Of: of(client.ErrNotFound), Say: "load the same recordcount and insertorder first"},
		{Of: of(client.ErrTooLarge),
			Say: "make the pool with a higher 'farkv up --pair-bytes', or lower fieldlength or fieldcount"},
		{Of: of(workloads.ErrIntegrity), Say: "load with dataintegrity=true and the same fieldcount and fieldlength"},
		{Of: of(client.ErrDamaged), Say: "use the fieldcount that was loaded; 'farkv check " + pool +
			"' looks for damage"},
		{Of: of(rdma.ErrNodeDown), Say: "'farkv status " + pool + "' shows the nodes"},
	}).Error()
}

// savable tells early whether a file of results can be written: after a long run it would be a
// pity.
func savable(what, name string) error {
	if name == "" || toStdout(name) {
		return nil
	}
	if err := runner.Savable(name); err != nil {
		return workloads.Usagef("%s: cannot write %s: %v", what, name, err)
	}
	return nil
}

func toStdout(name string) bool { return name == "-" || name == "/dev/stdout" }

// serveProfiles serves net/http/pprof where the properties ask for it.
func serveProfiles(p *properties.Properties, stderr io.Writer) (stop func(), err error) {
	addr := p.GetString("debug.pprof", "")
	if addr == "" {
		return func() {}, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = "", addr // a port alone
	}
	host = cmp.Or(host, "127.0.0.1")
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, workloads.Usagef("--pprof %s: %v", addr, err)
	}
	fmt.Fprintf(stderr, "go-ycsb: profiles at http://%s/debug/pprof/\n", l.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(l)
	}()
	return func() {
		server.Close()
		<-done
	}, nil
}
