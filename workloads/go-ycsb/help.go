package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/ycsb"
)

// helpTopics are what 'go-ycsb help' explains besides the commands: each database, the properties,
// the workloads.
func helpTopics() []*cobra.Command {
	var topics []*cobra.Command
	for _, k := range stores.Kinds() {
		topics = append(topics, topic(k.Name, k.Doc, storeHelp(k)))
	}
	return append(topics,
		topic("noop", "A database that does nothing", prose("Noop answers at once and keeps nothing: what is "+
			"measured with it is go-ycsb itself, the most that it can drive on this machine.")),
		topic("redis", "Redis, through upstream's driver", redisHelp),
		topic("properties", "YCSB's properties", propertiesHelp()),
		topic("workloads", "The workload files that come with it", workloadsHelp()),
	)
}

// helpCommand is cobra's, but for what it says of what there is no help for.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [TOPIC]",
		Short: "Explain a command, a database, the properties or the workloads",

		ValidArgsFunction: command.Topics(root),
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return workloads.Usagef("no help for %q: %s'go-ycsb help' lists what there is", strings.Join(args, " "),
					command.Unknown(cmd, strings.Join(rest, " ")))
			}
			return cmd.Help()
		},
	}
}

func topic(name, short, long string) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: strings.TrimSpace(long)}
}

const redisHelp = `Redis is upstream's driver, for comparison. It wants a running server:

  redis-server --save '' --appendonly no &
  go-ycsb load redis -P workloada -p redis.addr=127.0.0.1:6379
  go-ycsb run redis -P workloada -p redis.addr=127.0.0.1:6379 --threads 8

Some of its properties: redis.addr (localhost:6379), redis.mode (single, cluster), redis.datatype (hash, string,
json), redis.db, redis.username, redis.password. dropdata=true flushes the database at each start.
`

func storeHelp(kind *stores.Kind) string {
	can := "What it can do: " + strings.Join(kind.Can(), "; ") + "."
	if !kind.Scans {
		can += " Workload e, which scans, is refused."
	}
	return prose(kind.Name+": "+strings.TrimSuffix(kind.Doc, ".")+".") + "\n" +
		prose(can+" A record of one field is stored as it is, one of several as a row; an update of one field of "+
			"several reads the row first, which writeallfields=true does not. An insert of a record that is there "+
			"replaces it, as in YCSB's other bindings. Keys of another table than usertable begin with its name.") +
		fmt.Sprintf(`
Load makes the pool when there is none, and refuses one that already holds the records; run, in another process or in
several at once, uses it.

  go-ycsb load %s -P workloada -p recordcount=100000
  go-ycsb run %s -P workloada -p recordcount=100000 -p operationcount=1000000 --threads 8

On memory nodes that run load makes a pool, too; 'farkv up' starts them, or makes a pool that is found through Consul.
What guards them is told by the environment: FARKV_TOKEN_FILE, FARKV_TLS_CA, FARKV_TLS_CERT and FARKV_TLS_KEY, see
'farkv help tcp', and Consul's own, see 'farkv help consul'; which RDMA device to use by FARKV_RDMA_DEVICE,
FARKV_RDMA_PORT and FARKV_RDMA_GID, see 'farkv help rdma'.

  farkv up --fabric tcp mine --store %s --records 100000
  go-ycsb load %s -P workloada -p recordcount=100000 -p farkv.pool=mine -p farkv.metrics=127.0.0.1:9172

Its properties, besides YCSB's ('go-ycsb help properties'), with its defaults:

%s`, kind.Name, kind.Name, kind.Name, kind.Name, columns(func(line func(...string)) {
			for _, q := range drivers.PropertiesOf(kind) {
				line(q.Name, q.Default, q.Doc)
			}
			line("seed", "a new one", "of the generators")
		}))
}

func propertiesHelp() string {
	return "Properties come from files (-P, later ones win), then from -p name=value, then from flags.\n\n" +
		columns(func(line func(...string)) {
			for _, q := range runner.Properties {
				line(q.Name, q.Default, q.Doc)
			}
		})
}

func workloadsHelp() string {
	return "These can be named after -P without a path; 'workloads/ycsb' holds them as files. Workloada to " +
		"workloadf are\n" +
		"also called a to f and ycsb-a to ycsb-f. A file of the name that -P gives counts more.\n\n" +
		columns(func(line func(...string)) {
			for _, name := range ycsb.Names() {
				line(name, ycsb.Title(name))
			}
		})
}
