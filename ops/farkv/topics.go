package main

import (
	"embed"
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/node/cluster/consul"
)

// pages are texts of 'farkv help', a file a topic. RULES stands for those of Consul's access
// control.
//
//go:embed help
var pages embed.FS

// topics are what 'farkv help' explains besides the commands.
func topics() []*cobra.Command {
	topic := func(name, short string) *cobra.Command {
		text, err := pages.ReadFile("help/" + name + ".txt")
		if err != nil {
			panic(err) // the file is named in the same place as its topic
		}
		rules := strings.ReplaceAll(consul.Rules, "\n", "\n    ")
		return &cobra.Command{Use: name, Short: short,
			Long: strings.TrimSpace(strings.ReplaceAll(string(text), "RULES", rules))}
	}
	return []*cobra.Command{
		topic("tcp", "Pools over a network: addresses, tokens, TLS, leases"),
		topic("rdma", "Pools over RNICs: devices, addresses, memory, what is measured"),
		topic("consul", "Pools that are found through Consul"),
	}
}

// longText returns a raw string literal without the line break behind its opening quote, so that
// every line of a help text begins in the first column of the source.
func longText(s string) string { return strings.TrimPrefix(s, "\n") }
