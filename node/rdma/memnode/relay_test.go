package memnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
)

// TestRelay: an attacker that knows no token sits at the address of a node that died. Callers prove
// to it that they know the token. It passes the proof on to another node, in their hello or in one
// of its own, and orders what it likes.
func TestRelay(t *testing.T) {
	s := transport.Security{Token: []byte("a token of some length")}
	var nodes []*Node
	var addrs []string
	for range 3 {
		n, err := Listen(Config{Listen: child.Address(t), Memory: 1 << 20, Security: s})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		nodes, addrs = append(nodes, n), append(addrs, n.Addr())
	}
	f, err := tcp.Create(control.Options{Addresses: addrs, Security: s},
		control.Geometry{Nodes: 3, Memory: 1 << 20, Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := nodes[2].Close(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", addrs[2])
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type passed struct {
		called transport.Purpose
		as     bool // it was
	}
	heard := map[passed]bool{}
	for i := 0; i < 200 && len(heard) < 6; i++ { // each of the three purposes, both ways
		victim, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		victim.SetDeadline(time.Now().Add(time.Second))
		change := false
		called, err := relay(victim, addrs[0], func(called transport.Purpose) bool {
			change = heard[passed{called, true}]
			return change
		})
		victim.Close()
		if err == nil {
			t.Errorf("a call for %q was passed on, and an order obeyed", called)
		}
		if called != "" {
			heard[passed{called, !change}] = true
		}
	}
	if len(heard) < 6 {
		t.Errorf("too few calls were passed on: %v", heard)
	}
	for i, n := range nodes[:2] {
		if n.pool.Load() == nil {
			t.Errorf("a client without a token has taken the pool from node %d", i)
		}
	}
}

// relay passes a call on to a node, and tells what it was for; nil: what was ordered then was done.
func relay(victim net.Conn, to string, change func(called transport.Purpose) bool) (transport.Purpose, error) {
	var caller, node transport.Greeting
	target, err := net.Dial("tcp", to)
	if err != nil {
		return "", err
	}
	defer target.Close()
	target.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.ReadFull(victim, caller[:]); err != nil {
		return "", err
	}
	target.Write(caller[:])
	if _, err := io.ReadFull(target, node[:]); err != nil {
		return "", err
	}
	victim.Write(node[:])
	var h transport.Hello
	if _, err := transport.ReadMessage(victim, transport.KindHello, transport.MaxHello, &h); err != nil {
		return "", err
	}
	called := h.Purpose
	if change(called) {
		h.Purpose, h.Process, h.Node = transport.ForControl, "attacker", 0
	}
	if err := transport.WriteMessage(target, transport.KindHello, transport.StatusOK, h); err != nil {
		return called, err
	}
	var w transport.Welcome
	st, err := transport.ReadMessage(target, transport.KindHello, transport.MaxHello, &w)
	if err == nil && st == transport.StatusOK {
		err = transport.WriteMessage(target, transport.KindControl, transport.StatusOK,
			control.Message{Do: control.DoDrop, Pool: h.Pool, Force: true})
		if err == nil {
			st, err = transport.ReadMessage(target, transport.KindControl, transport.MaxAnswer, &control.Reply{})
		}
	}
	if err == nil && st != transport.StatusOK {
		err = fmt.Errorf("refused: %w", st.Err())
	}
	return called, err
}

// TestWitnessHasNoMemory: a witness, which may offer less memory than the pool's nodes, executes no
// verbs.
func TestWitnessHasNoMemory(t *testing.T) {
	var addrs []string
	for _, memory := range []uint64{8 << 20, 8 << 20, 4096} {
		n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: memory})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		addrs = append(addrs, n.Addr())
	}
	f, err := tcp.Create(control.Options{Addresses: addrs[:2], Witnesses: addrs[2:]},
		control.Geometry{Nodes: 2, Memory: 8 << 20, Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c, _, err := transport.Dial(ctx, addrs[2], transport.Security{},
		transport.Hello{Purpose: transport.ForVerbs, Process: transport.NewID(), Pool: f.Record().ID, Node: 2})
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("verbs for a witness: %v", err)
	}
}
