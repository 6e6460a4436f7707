// Package drivers are the databases of go-ycsb, by the names of upstream's registry: every store of
// package stores, noop, and upstream's driver of Redis.
//
// A driver of ours is both a ycsb.DB, which upstream's registry wants, and a runner.Database, which
// the worker loop drives without upstream's maps; an upstream driver is adapted to the latter.
package drivers

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/magiconair/properties"
	_ "github.com/pingcap/go-ycsb/db/redis" // registers redis
	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// The values of upstream's property "command": what the database is wanted for.
const (
	Load  = "load"
	Run   = "run"
	Shell = "shell"
)

// ErrNotLoaded is wrapped when a database is to be run that holds nothing.
var ErrNotLoaded = errors.New("nothing is loaded")

// Database is one that can be run and be spoken to.
type Database interface {
	runner.Database
	ycsb.DB
}

// Names lists the databases, sorted.
func Names() []string {
	names := append(stores.Names(), "noop", redis)
	sort.Strings(names)
	return names
}

// Known refuses, with a workloads.UsageError, a name that is no database's.
func Known(name string) error {
	if ycsb.GetDBCreator(name) == nil {
		return workloads.Usagef("unknown database %q: %sthere are %s", name, workloads.DidYouMean(name, Names()),
			strings.Join(Names(), ", "))
	}
	return nil
}

func noScans(name string) error {
	return workloads.Usagef("%s has no scans: set scanproportion=0 (workload e scans)", name)
}

// redis is upstream's driver, which has no scans.
const redis = "redis"

// Create opens the database with that name as the properties say, for the command that the property
// "command" names: "load" makes a pool where there is none and refuses one that already holds what
// is to be loaded; "run" wants one that is loaded. After a load the same database can be run. A
// user's mistake is a workloads.UsageError.
func Create(name string, p *properties.Properties) (Database, error) {
	if err := Known(name); err != nil {
		return nil, err
	}
	spec, err := runner.ReadSpec(p)
	if err != nil {
		return nil, err
	}
	if name == redis && spec.Scan > 0 && p.GetString("command", Run) != Shell {
		return nil, noScans(name)
	}
	threads := p.GetInt("threadcount", 1)
	if _, _, err := p.Set("threadcount", fmt.Sprint(threads)); err != nil { // upstream's drivers insist on it
		return nil, err
	}
	db, err := ycsb.GetDBCreator(name).Create(p)
	switch {
	case err != nil && runner.Misused(err):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	if own, ok := db.(Database); ok {
		return own, nil
	}
	return newForeign(db, spec, threads), nil
}

func init() {
	for _, name := range stores.Names() {
		ycsb.RegisterDBCreator(name, storeCreator{name: name, world: real})
	}
	ycsb.RegisterDBCreator("noop", noopCreator{})
}
