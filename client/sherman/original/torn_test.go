package original

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// dying is the endpoint of a client that dies in the midst of a write-back: some of its verbs land,
// and of the next WRITE some words.
type dying struct {
	rdma.Endpoint
	skip int // write-backs that are whole
	ops  int // of the next one, that land
	rng  *rand.Rand
	torn bool // of the one behind them some words land
	dead bool
	left int // verbs that did not land
}

var errDead = errors.New("it is dead")

func (e *dying) Post(b *rdma.Batch) error {
	if e.dead {
		return errDead
	}
	if b.Step() != stepWriteBack {
		return e.Endpoint.Post(b)
	}
	if e.skip > 0 {
		e.skip--
		return e.Endpoint.Post(b)
	}
	e.dead = true
	p := e.Batch()
	defer p.Release()
	for i := range min(b.Len(), e.ops+1) {
		op := b.Op(i)
		switch {
		case i == e.ops && op.Verb != rdma.Write:
		case i == e.ops:
			for w := 0; e.torn && w < len(op.Buf); w += 8 {
				if e.rng.IntN(2) == 0 {
					p.WriteCopy(op.Addr.Add(uint64(w)), op.Buf[w:min(w+8, len(op.Buf))])
				}
			}
		case op.Verb == rdma.Write:
			p.WriteCopy(op.Addr, op.Buf)
		default:
			p.CompareSwap(op.Addr, op.Expect, op.Value)
		}
	}
	e.left = b.Len() - e.ops
	return errors.Join(errDead, rdma.Do(e.Endpoint, p, rdma.Forever))
}

// TestTornWrites: a client dies in each of an operation's write-backs, behind
// each of their verbs, with any words of the next WRITE. When it is recovered the
// pair is as it was, or as it was to be; all others are there, and nothing is
// lost.
func TestTornWrites(t *testing.T) {
	long, short := bytes.Repeat([]byte("long "), 12), []byte("8 bytes.")
	for _, c := range []struct {
		name     string
		keys     int
		old, now []byte // nil: none
	}{
		{"insert", 1, nil, short}, {"insert into a full leaf", 2, nil, short}, {"insert, beside", 2, nil, long},
		{"insert that splits", 40, nil, short},
		{"insert that splits, beside", 40, nil, long}, {"update", 5, short, []byte("other 8.")},
		{"update of another length", 5, []byte("abc"), short}, {"update that goes beside", 5, short, long},
		{"update beside", 5, long, bytes.Repeat([]byte("another "), 8)}, {"delete", 5, short, nil},
		{"delete, beside", 5, long, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			deaths := 0
			for skip := range 3 {
				for ops := range 6 {
					for seed := range uint64(16) {
						left := tornWrite(t, c.keys, c.old, c.now,
							&dying{skip: skip, ops: ops, torn: seed > 0, rng: rand.New(rand.NewPCG(seed, uint64(ops)))})
						if left > 0 {
							deaths++
						}
					}
				}
			}
			if deaths < 12 {
				t.Errorf("%d clients died", deaths)
			}
		})
	}
}

func tornWrite(t *testing.T, keys int, old, now []byte, d *dying) (left int) {
	t.Helper()
	f := memPool(t, 1, tornParams)
	s := storeOn(t, f, Options{CacheBytes: new(0)})
	key := func(i int) []byte { return fmt.Appendf(nil, "key%03d", i) }
	for i := range keys {
		must(t, s.Insert(key(2*i), []byte("other")))
	}
	// The client writes until it dies: an INSERT splits now and then, and so do the nodes above.
	ep, err := f.Open("victim")
	must(t, err)
	d.Endpoint = ep
	v, err := Open(d, Options{})
	must(t, err)
	var last []byte
	written := 0
	for i := 0; i < keys && !d.dead; i++ {
		last = key(2*i + 1)
		if old != nil {
			must(t, s.Insert(last, old))
		}
		switch {
		case old == nil:
			_ = v.Insert(last, now) // it fails where it dies
		case now == nil:
			_ = v.Delete(last)
		default:
			_ = v.Update(last, now)
		}
		written++
	}
	must(t, f.RevokeLife(rdma.Client{ID: ep.Client(), Life: ep.Life()}))
	own, err := f.Open("master")
	must(t, err)
	m, err := NewRecoverer(own)
	must(t, err)
	must(t, m.Recover(f.View(), ep.Client()))
	must(t, own.Close())
	there := 0
	for i := range keys {
		got, err := s.Get(key(2 * i))
		if err != nil || string(got) != "other" {
			t.Errorf("%+v: %s is %q, %v", *d, key(2*i), got, err)
		}
		got, err = s.Get(key(2*i + 1))
		if err == nil {
			there++
		}
		want, dead := now, bytes.Equal(key(2*i+1), last)
		if i >= written {
			want = nil
		}
		if as := func(v []byte) bool { return (err == nil) == (v != nil) && bytes.Equal(got, v) }; !as(want) &&
			!(dead && as(old)) {
			t.Errorf("%+v: %s is %q, %v, want %q or, if it died there (%v), %q", *d, key(2*i+1), got, err, want, dead,
				old)
		}
	}
	must(t, s.Close())
	checked(t, f, keys+there)
	return d.left
}

var tornParams = func() Params {
	p := tiny(1, 1e9)
	p.Nodes, p.Blocks = 200, 200
	return p
}()

// TestOthersBlock: a block that was used again has another pair, or another value, and is not the
// one that a slot named.
func TestOthersBlock(t *testing.T) {
	f := memPool(t, 1, tornParams)
	s := storeOn(t, f, Options{})
	long := bytes.Repeat([]byte("long "), 12)
	must(t, s.Insert([]byte("key"), long))
	s.span()
	r := makeRef(0, 0)
	l, ok := s.readLeaf(nodeOn(t, s, r), r)
	i := l.find([]byte("key"))
	p := pointer(l.value(i))
	if there, err := s.readValue(p, []byte("key")); !ok || !there || err != nil {
		t.Fatalf("its own block: %v, %v", there, err)
	}
	for _, k := range []struct {
		self pointer
		key  string
	}{{p.next(), "key"}, {p, "other"}} {
		b := s.ep.Batch()
		buf := s.writeBlock(b.Alloc(s.blockBytes), k.self, 0, []byte(k.key), long)
		values := []*rdma.Op{{Buf: bytes.Clone(buf)}}
		b.Write(s.blocks.at(p.ref()), buf)
		must(t, s.do(stepWriteFar, b))
		b.Release()
		if there, err := s.readValue(p, []byte("key")); there || err != nil {
			t.Errorf("the block of %q as of %#x is taken for that of key: %v", k.key, k.self, err)
		}
		if _, ok := s.scan.scanned(&l, i, values, 0); ok {
			t.Errorf("a scan takes the block of %q as of %#x for that of key", k.key, k.self)
		}
	}
	b := s.ep.Batch() // it is whole again
	b.Write(s.blocks.at(p.ref()), s.writeBlock(b.Alloc(s.blockBytes), p, 0, []byte("key"), long))
	must(t, s.do(stepWriteFar, b))
	b.Release()
}
