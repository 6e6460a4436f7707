package main

import (
	"errors"
	"os"
	"strconv"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
)

// reversion POOL VERSION gives a pool's store another version of its format.
func reversion() {
	f := must(fabrics.Open(os.Args[1]))
	ep := must(f.Open("reversion"))
	h := must(node.ReadHeader(ep, f.Nodes()))
	h.Version = uint32(must(strconv.ParseUint(os.Args[2], 10, 32)))
	must(0, errors.Join(node.WriteHeader(f, ep, h), ep.Close(), f.Close()))
}
