package stores

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// TestRowan runs the suites that each store passes. They are here since the servers are the Kind's.
func TestRowan(t *testing.T) {
	t.Parallel()
	for _, kind := range kv.Kinds() {
		t.Run(kind.String(), func(t *testing.T) { runRowan(t, kinds[kind.String()]) })
	}
}

func runRowan(t *testing.T, k *Kind) {
	p := k.Size(Params{Records: 2000, PairBytes: 1200, Clients: 64, Timeout: 20 * time.Second})
	storetest.Run(t, storetest.Harness{
		Nodes: p.Nodes, Memory: p.Memory, Clients: p.Clients + p.Servers, Handler: node.Serve,
		Format: func(f rdma.Fabric) error { return k.Make(f, p) },
		Serve:  func(f rdma.Fabric) (explore.Servers, error) { return k.Start(f) },
		OpenOn: func(f rdma.Fabric, ep rdma.Endpoint) (client.Store, error) { return k.Open(ep, Options{Fabric: f}) },
		Check:  k.Check,
		MaxKey: 200, MaxValue: 1000, MinSeeds: 50,
		Alike: k.Baseline,
	})
}

const rowanValue = "a value of thirty-two bytes, all"

// describing names what lies at an address.
type describing = func(rdma.Addr) string

// flipped finds the first word that lies where something does, unless it is zero, and flips a bit
// of it.
func flipped(what string) func(describing, rdma.Addr, []byte) (int, uint64) {
	return func(describe describing, a rdma.Addr, p []byte) (int, uint64) {
		for i := 0; i < len(p); i += 8 {
			word := binary.LittleEndian.Uint64(p[i:])
			if word != 0 && describe(a.Add(uint64(i))) == what {
				return i, word ^ 1<<5
			}
		}
		return -1, 0
	}
}

// TestRowanCheck: a check finds a record that one replica has lost, an answer that is not what the
// logs say, and a table that no server writes. Whatever else is going on, it finds nothing in a
// pool that is whole.
func TestRowanCheck(t *testing.T) {
	first, err := shards.New([]int{0, 1, 2}, 48, 3)
	must(t, err)
	var ofNode1 []byte // a key with its primary beside node 1
	for i := range 100 {
		if key := fmt.Appendf(nil, "key-%d is", i); first.Shards[first.Find(kv.Hash(key))].Primary == 1 {
			ofNode1 = key
		}
	}
	for _, c := range []struct {
		what, want string
		at         func(describe describing, a rdma.Addr, p []byte) (offset int, word uint64)
	}{
		{"nothing", "", nil},
		{"a record that lost its head", "lacks version", func(_ describing, _ rdma.Addr, p []byte) (int, uint64) {
			if i := bytes.Index(p, []byte("key-7 is")); i >= 40 {
				return i - 40, 0
			}
			return -1, 0
		}},
		{"a record with a flipped bit", ") has a wrong checksum",
			func(_ describing, _ rdma.Addr, p []byte) (int, uint64) {
				if i := bytes.Index(p, []byte("key-7 is"+rowanValue)); i >= 0 {
					i = (i + len("key-7 is") + 7) &^ 7
					return i, binary.LittleEndian.Uint64(p[i:]) ^ 1<<20
				}
				return -1, 0
			}},
		{"a primary's record with another value", "says that what it has of",
			func(_ describing, _ rdma.Addr, p []byte) (int, uint64) {
				if i := bytes.Index(p, append(bytes.Clone(ofNode1), rowanValue...)); i >= 0 {
					return (i + len(ofNode1) + 7) &^ 7, 0
				}
				return -1, 0
			}},
		{"a word with a flipped bit", "read since when of server", flipped("term since which the server has shard 3")},
		{"a segment in no state", "has state", flipped("state of segment 3")},
	} {
		p, err := Create("mem:", "rowan", Params{Records: 500, PairBytes: 200, Clients: 8, Timeout: 20 * time.Second})
		must(t, err)
		s, ep, err := p.Worker("check", Options{})
		must(t, err)
		for i := range 100 {
			must(t, s.Insert(fmt.Appendf(nil, "key-%d is", i), []byte(rowanValue)))
		}
		must(t, s.Close())
		if c.at != nil {
			describe, err := p.Kind.Describe(ep)
			must(t, err)
			damage(t, ep, p.Fabric.Size(), func(a rdma.Addr, bytes []byte) (offset int, word uint64) {
				return c.at(describe, a, bytes)
			})
		}
		must(t, ep.Close())
		found := ""
		// until servers say that all is committed
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && found == ""; {
			r, err := p.Kind.Check(p.Fabric)
			must(t, err)
			if found = strings.Join(r.Damage, "; "); c.want == "" {
				break
			}
		}
		if !strings.Contains(found, c.want) || (c.want == "") != (found == "") {
			t.Errorf("%s: the check finds %q, want %q", c.what, found, c.want)
		}
		must(t, p.Close())
	}
}

// TestRowanFull: when writes are refused since there is no room, that is what the pool says of how
// full it is.
func TestRowanFull(t *testing.T) {
	t.Parallel()
	p, err := Create("mem:", "rowan", Params{Records: 300, PairBytes: 200, Clients: 8, Timeout: 2 * time.Second})
	must(t, err)
	s, ep, err := p.Worker("fill", Options{})
	must(t, err)
	refused, n := 0, 0
	for ; refused < 5; n++ { // the first refusals may be of shards with logs that are full for a moment
		switch err := s.Insert(fmt.Appendf(nil, "key-%d", n), make([]byte, 100)); {
		case errors.Is(err, client.ErrFull):
			refused++
		case err != nil:
			t.Fatal(err)
		}
	}
	must(t, s.Close())
	must(t, ep.Close())
	all, err := p.Kind.Fill(p.Fabric)
	must(t, err)
	for _, f := range all {
		if 100*f.Used < 95*f.All || f.Used > f.All || f.All == 0 {
			t.Errorf("of %d writes %d are refused, and it says %+v", n, refused, f)
		}
	}
	must(t, p.Close())
}

// TestRowanFailover: a node of a pool that is kept dies under load. Writes go on, and what was
// acknowledged is there.
func TestRowanFailover(t *testing.T) {
	p, err := Create("mem:", "rowan", Params{Nodes: 4, Records: 500, PairBytes: 200, Clients: 16,
		Timeout: 5 * time.Second})
	must(t, err)
	var log sync.Map
	must(t, p.Keep(cluster.Options{Log: func(e cluster.Event) { log.Store(e.String(), nil) }}))
	s, ep, err := p.Worker("load", Options{})
	must(t, err)
	uncertain := map[int]bool{}
	for i := range 400 {
		if i == 200 {
			must(t, p.Fabric.(interface{ KillNode(int) error }).KillNode(1))
		}
		key := fmt.Appendf(nil, "key-%d is", i)
		for range 10 { // a master may take its time on a machine that is busy
			err = s.Insert(key, []byte(rowanValue))
			if uncertain[i] = uncertain[i] || errors.Is(err, client.ErrUncertain); !errors.Is(err, rdma.ErrTimeout) {
				break
			}
		}
		if err != nil && !errors.Is(err, client.ErrUncertain) && !(uncertain[i] && errors.Is(err, client.ErrExists)) {
			log.Range(func(e, _ any) bool { t.Log(e); return true })
			t.Fatalf("insert %s: %v", key, err)
		}
	}
	for i := range 400 {
		v, err := s.Get(fmt.Appendf(nil, "key-%d is", i))
		if string(v) != rowanValue && !(uncertain[i] && errors.Is(err, client.ErrNotFound)) {
			t.Fatalf("key %d has %q, %v", i, v, err)
		}
	}
	r, err := p.Kind.Check(p.Fabric)
	if err != nil || len(r.Damage) > 0 {
		t.Errorf("check: %v, %v", r.Damage, err)
	}
	must(t, s.Close())
	must(t, ep.Close())
	must(t, p.Close())
}

// damage replaces a word of node 1's memory that find chooses.
func damage(t *testing.T, ep rdma.Endpoint, memory uint64, find func(a rdma.Addr, p []byte) (offset int, word uint64)) {
	t.Helper()
	const part = 64 << 10
	for off := uint64(0); off < memory; off += part / 2 {
		at := rdma.At(1, off)
		p, err := rdma.ReadBytes(ep, "look", at, int(min(part, memory-off)), time.Second)
		must(t, err)
		i, word := find(at, p)
		if i < 0 {
			continue
		}
		b := ep.Batch()
		b.WriteWord(at.Add(uint64(i)), word)
		must(t, rdma.Do(ep, b, time.Second))
		b.Release()
		return
	}
	t.Fatal("there is nothing to damage")
}

// TestRowanCheckIncomplete: a check says which members it did not see: of their shards it cannot
// tell whether replicas are equal.
func TestRowanCheckIncomplete(t *testing.T) {
	p, err := Create("mem:", "rowan", Params{Records: 500, PairBytes: 200, Clients: 8, Timeout: 20 * time.Second})
	must(t, err)
	s, ep, err := p.Worker("check", Options{})
	must(t, err)
	for i := range 100 {
		must(t, s.Insert(fmt.Appendf(nil, "key-%d is", i), []byte(rowanValue)))
	}
	must(t, s.Close())
	must(t, ep.Close())
	asked := func(r client.Report) uint64 {
		for _, f := range r.Facts {
			if f.Name == "keys that primaries were asked for" {
				return f.Count
			}
		}
		return 0
	}
	var r client.Report
	// until servers say that all is committed
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && asked(r) < 100; {
		r, err = p.Kind.Check(p.Fabric)
		must(t, err)
	}
	if len(r.Damage) > 0 || len(r.Unchecked) > 0 || asked(r) != 100 {
		t.Errorf("a whole pool: %+v", r)
	}
	must(t, p.Fabric.(interface{ KillNode(int) error }).KillNode(1))
	r, err = p.Kind.Check(p.Fabric)
	if err != nil || len(r.Damage) > 0 || len(r.Unchecked) != 1 || asked(r) == 0 || asked(r) == 100 {
		t.Errorf("node 1 is down, and nothing recovers it: %+v, %v", r, err)
	}
	const want = "node 1: replicas of the 48 shards of which its server is the primary are not compared, and its own " +
		"of 96 others"
	if len(r.Unchecked) > 0 && !strings.HasPrefix(r.Unchecked[0], want) {
		t.Errorf("it says %q, want %q", r.Unchecked[0], want)
	}
	must(t, p.Close())
}
