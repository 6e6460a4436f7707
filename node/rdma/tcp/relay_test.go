package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// TestRelay: an attacker that knows no token sits at the address of a node that died. Callers prove
// to it that they know the token. It passes the proof on to another node, in their hello or in one
// of its own, and orders what it likes.
func TestRelay(t *testing.T) {
	s := Security{Token: []byte("a token of some length")}
	var nodes []*Node
	var addrs []string
	for range 3 {
		n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: 1 << 20, Security: s})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		nodes, addrs = append(nodes, n), append(addrs, n.Addr())
	}
	f, err := Create(Options{Addresses: addrs, Security: s}, Geometry{3, 1 << 20, 8, 0}, nil)
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
		called purpose
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
		called, err := relay(victim, addrs[0], func(called purpose) bool {
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
func relay(victim net.Conn, to string, change func(called purpose) bool) (purpose, error) {
	var caller, node greeting
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
	var h hello
	if _, err := readMessage(victim, kindHello, maxHello, &h); err != nil {
		return "", err
	}
	called := h.Purpose
	if change(called) {
		h.Purpose, h.Process, h.Node = forControl, "attacker", 0
	}
	if err := writeMessage(target, kindHello, statusOK, h); err != nil {
		return called, err
	}
	var w welcome
	st, err := readMessage(target, kindHello, maxHello, &w)
	if err == nil && st == statusOK {
		err = writeMessage(target, kindControl, statusOK, message{Do: doDrop, Pool: h.Pool, Force: true})
		if err == nil {
			st, err = readMessage(target, kindControl, maxAnswer, &reply{})
		}
	}
	if err == nil && st != statusOK {
		err = fmt.Errorf("refused: %w", st.err())
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
	f, err := Create(Options{Addresses: addrs[:2], Witnesses: addrs[2:]}, Geometry{2, 8 << 20, 8, 0}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c, _, err := dial(ctx, addrs[2], Security{}, hello{Purpose: forVerbs, Process: newID(), Pool: f.record.ID, Node: 2})
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("verbs for a witness: %v", err)
	}
}
