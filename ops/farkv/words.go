package main

import "github.com/spf13/cobra"

// otherWords tells commands what users of other programs call them, so that an unknown command is
// asked after.
func otherWords(root *cobra.Command) {
	words := map[string][]string{
		"up": {"create", "make", "new", "init", "start"}, "down": {"destroy", "rm", "stop"}, "list": {"ls", "pools"},
		"status": {"info", "show", "stats"}, "get": {"read"}, "put": {"set", "write", "insert", "update"},
		"del": {"delete", "remove", "unset"}, "check": {"fsck", "verify"}, "recover": {"repair", "mend"},
		"bench": {"benchmark"}, "node": {"serve", "server"}, "keep": {"keeper"}, "plot": {"draw", "chart", "graph"},
	}
	for _, cmd := range root.Commands() {
		cmd.SuggestFor = words[cmd.Name()]
	}
}
