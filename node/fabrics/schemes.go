package fabrics

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

// A scheme is a row of the table: what the addresses of pools of one kind begin with, and what is
// done with such pools.
type scheme struct {
	name string // before the colon
	form string // of an address, for messages; "": none is right

	parse  func(rest string) (Address, error) // what follows the colon; Scheme may be left out
	create func(a Address, g Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error)
	open   func(a Address) (rdma.Fabric, error)
	remove func(a Address, force bool) error

	private bool // its pools end with the process that makes them
	// shared returns the same pool as one that other users may change, where it is meant to be;
	// nil: there are none.
	shared func(a Address) Address
	list   func() (names []string, err error) // of pools of this machine; nil: there are none
	// what there is of this machine's memory for its pools; nil: they take none
	supply func() []supply
	lacks  func() error // why this machine cannot have such pools; nil: nothing is known
}

// schemes returns the table; the first row is that of a NAME without a scheme. It is no variable,
// since functions in it look things up in it.
func schemes() []scheme {
	return slices.Concat([]scheme{
		{
			name: "shm", form: "shm:NAME", parse: parseShm, create: createShm, open: openShm, remove: removeShm,
			shared: sharedShm, list: shm.List, supply: supplyOfShm, lacks: lacksShm,
		},
		{name: sharedShmScheme, form: sharedShmScheme + ":NAME", parse: parseShared}, // its addresses are shm's
		{
			name: "mem", form: "mem:", parse: parseMem, create: createMem, open: openMem, remove: removeMem,
			private: true,
			supply:  func() []supply { return machine().memory() },
		},
	}, schemesOnNodes(), []scheme{
		{
			name: "consul", form: "consul:HOST:PORT/POOL", parse: parseConsul, create: createConsul, open: openConsul,
			remove: removeConsul,
		},
		{name: "sim", parse: refuseSim},
	})
}

// schemeOf returns a row, or an empty one.
func schemeOf(name string) scheme {
	all := schemes()
	if i := slices.IndexFunc(all, func(s scheme) bool { return s.name == name }); i >= 0 {
		return all[i]
	}
	return scheme{}
}

// Address is a parsed address. Which fields are set depends on its scheme.
type Address struct {
	Scheme string   // such as "shm" or "consul"
	Name   string   // of a pool of this machine, or of Consul
	Shared bool     // the pool is shared with other users of this machine
	Agent  string   // of Consul, which knows the memory nodes: HOST:PORT
	Nodes  []string // HOST:PORT of the memory nodes, or of some
}

func (a Address) String() string {
	switch {
	case a.Nodes != nil:
		return a.Scheme + ":" + strings.Join(a.Nodes, ",")
	case a.Agent != "":
		return a.Scheme + ":" + a.Agent + "/" + a.Name
	case a.Shared:
		return sharedShmScheme + ":" + a.Name
	}
	return a.Scheme + ":" + a.Name
}

// Remote reports whether the pool's memory nodes are processes, maybe of other machines.
func (a Address) Remote() bool { return a.Nodes != nil || a.Agent != "" }

// Private reports whether an address, right or wrong, is of the pools that end with the process
// that makes them.
func Private(addr string) bool {
	name, _, ok := strings.Cut(addr, ":")
	return ok && schemeOf(name).private
}

// Parse parses an address. Errors wrap ErrAddress; those about a fabric that this program lacks
// rdma.ErrNotSupported or ErrNotBuilt as well.
func Parse(addr string) (Address, error) {
	name, rest, ok := strings.Cut(addr, ":")
	if !ok {
		name, rest = schemes()[0].name, addr
	}
	s := schemeOf(name)
	if s.parse == nil {
		return Address{}, fmt.Errorf("%w %q: want %s", ErrAddress, addr, forms())
	}
	a, err := s.parse(rest)
	switch {
	case errors.Is(err, ErrAddress):
		return Address{}, err
	case err != nil:
		return Address{}, fmt.Errorf("%w %q: %w", ErrAddress, addr, err)
	}
	a.Scheme = cmp.Or(a.Scheme, name)
	return a, nil
}

// forms lists what addresses look like.
func forms() string {
	all := []string{"NAME"}
	for _, s := range schemes() {
		if s.form != "" {
			all = append(all, s.form)
		}
	}
	return OneOf(all)
}

// OneOf writes two words or more as a choice.
func OneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func refuseSim(string) (Address, error) {
	return Address{}, fmt.Errorf(
		"virtual time is no pool to attach to: 'farkv sim run STORE' makes its own; use shm:NAME here: %w",
		rdma.ErrNotSupported)
}

// Fabrics returns the names of the fabrics: those of private pools, then those that a pool of a
// NAME may be on.
func Fabrics() (names []string) {
	for _, s := range schemes() {
		if s.private {
			names = append(names, s.name)
		}
	}
	return append(names, NamedFabrics()...)
}

// NamedFabrics returns the fabrics of pools that have names on this machine: in its memory, and on
// memory nodes that are started there.
func NamedFabrics() (names []string) {
	for _, s := range schemes() {
		if s.list != nil {
			names = append(names, s.name)
		}
	}
	return append(names, NodeFabrics()...)
}

// Missing returns what this machine lacks for pools of a fabric; nil: nothing that is known.
func Missing(fabric string) error {
	if s := schemeOf(fabric); s.lacks != nil {
		return s.lacks()
	}
	return nil
}
