package rowan_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// damaging is a pool in memory of which a record is damaged at one replica, that of server 1, while
// servers run.
type damaging struct {
	*real
	t      *testing.T
	s      client.Store
	victim string // its key, which load does not touch
	value  []byte
}

// newDamaging returns a pool with a record in a shard of which server 1 is the primary, or a
// backup. Servers that hang are not expelled.
func newDamaging(t *testing.T, k kv.Kind, primary bool) *damaging {
	o := small(k)
	o.Nodes, o.Shards = 4, 8
	o.Log.Segments, o.Log.Ahead, o.Log.Reserve = 48, 30, 16
	c, f := newChanging(t, o, cm.Options{Period: time.Hour, Hung: time.Hour})
	config := c.await("the first configuration", func(*shards.Config) bool { return true })
	s, _, end := c.client()
	t.Cleanup(end)
	d := &damaging{real: c, t: t, s: s, value: bytes.Repeat([]byte("victim"), 20)} // in one block
	for i := 0; d.victim == ""; i++ {
		key := fmt.Sprint("victim-", i)
		shard := &config.Shards[config.Find(kv.Hash([]byte(key)))]
		if shard.Has(1) && (shard.Primary == 1) == primary {
			d.victim = key
		}
	}
	d.put(d.victim)
	for i := range 10 {
		d.put(fmt.Sprint("other-", i))
	}
	for cleaned := c.running[1].Stats().Cleaned; c.running[1].Stats().Cleaned < cleaned+20; { // so the index names it
		d.load()
	}
	// no copy is made
	for cleaned := uint64(0); c.running[1].Stats().Cleaned > cleaned; time.Sleep(50 * time.Millisecond) {
		cleaned = c.running[1].Stats().Cleaned
	}
	d.damage(c.endpoint(f, "damage"))
	return d
}

func (d *damaging) put(key string) {
	d.t.Helper()
	if err := d.s.Insert([]byte(key), d.value); err != nil {
		d.t.Fatal(err)
	}
}

// load writes other records, and returns how long the longest took.
func (d *damaging) load() (longest time.Duration) {
	for i := range 10 {
		began := time.Now()
		_ = d.s.Update(fmt.Append(nil, "other-", i), d.value) // full for a moment, or in doubt while a term begins
		longest = max(longest, time.Since(began))
	}
	return longest
}

// damage flips a bit in each copy of the victim's value that server 1 has.
func (d *damaging) damage(ep rdma.Endpoint) {
	defer ep.Close()
	b := ep.Batch()
	defer b.Release()
	read := b.Read(rdma.At(1, 0), int(d.o.Size()))
	if err := rdma.Do(ep, b, patience); err != nil {
		d.t.Fatal(err)
	}
	flip, copies := ep.Batch(), 0
	defer flip.Release()
	record := append([]byte(d.victim), d.value...)
	for at := bytes.Index(read.Buf, record); at >= 0; at = bytes.Index(read.Buf, record) {
		read.Buf[at]++
		flip.Write(rdma.At(1, uint64(at+len(d.victim))), []byte{d.value[0] ^ 4})
		copies++
	}
	if err := rdma.Do(ep, flip, patience); copies == 0 || err != nil {
		d.t.Fatalf("%d copies of the record: %v", copies, err)
	}
}

// judge sees that all is there, and that new records are.
func (d *damaging) judge() {
	d.t.Helper()
	d.load() // the client joins the view
	for i := range 10 {
		d.put(fmt.Sprint("new-", i))
	}
	for _, key := range []string{d.victim, "other-3", "new-4"} {
		if got, err := d.s.Get([]byte(key)); err != nil || !bytes.Equal(got, d.value) {
			d.t.Errorf("%s: %q, %v", key, got, err)
		}
	}
}

// TestDamageMem: a record is damaged at one replica while servers run. When that one is to move it,
// it ends. Its node is expelled at once, others serve its shards, and nothing is lost.
func TestDamageMem(t *testing.T) {
	d := newDamaging(t, kv.Rowan, false)
	var longest time.Duration
	for until := time.Now().Add(time.Minute); ; {
		longest = max(longest, d.load())
		if d.await("a configuration", func(*shards.Config) bool { return true }).Member(1) == nil {
			break
		}
		if time.Now().After(until) {
			t.Fatal("the server is a member yet, though others' entries were written for a minute")
		}
	}
	// it takes as long as when the node dies; a busy machine takes some of that
	if d.judge(); longest > 10*time.Second {
		t.Errorf("a write took %v", longest)
	}
}

// TestDamagedPrimaryMem: it is damaged at the primary. A GET, or a write, is not answered by it:
// the replica is left out, so that another one answers.
func TestDamagedPrimaryMem(t *testing.T) {
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) {
		for name, do := range map[string]func(d *damaging) error{
			"get": func(d *damaging) error {
				got, err := d.s.Get([]byte(d.victim))
				if err == nil && !bytes.Equal(got, d.value) {
					err = fmt.Errorf("it has %q", got)
				}
				return err
			},
			"insert": func(d *damaging) error {
				if err := d.s.Insert([]byte(d.victim), nil); !errors.Is(err, client.ErrExists) {
					return fmt.Errorf("insert: %w", err)
				}
				return nil
			},
			"update": func(d *damaging) error { return d.s.Update([]byte(d.victim), d.value) },
		} {
			t.Run(name, func(t *testing.T) {
				d := newDamaging(t, k, true)
				if err := do(d); err != nil {
					t.Error(err)
				}
				d.await("a configuration in which another server serves the shard", func(c *shards.Config) bool {
					s := c.Shards[c.Find(kv.Hash([]byte(d.victim)))]
					return s.Primary != 1 && len(s.Complete()) == 3
				})
				d.judge()
			})
		}
	})
}

// TestDamagedAlone: where no other replica is complete the error says so at once, and names the
// shard, the server, and the place. Other records are served.
func TestDamagedAlone(t *testing.T) {
	o := small(kv.Rowan)
	o.Nodes, o.Shards = 1, 2
	c, f := newChanging(t, o, cm.Options{Period: time.Hour, Hung: time.Hour})
	config := c.await("the first configuration", func(*shards.Config) bool { return true })
	s, _, end := c.client()
	defer end()
	d := &damaging{real: c, t: t, s: s, victim: "victim", value: bytes.Repeat([]byte("victim"), 20)}
	d.put(d.victim)
	d.put("other-0")
	at := c.running[0].Named([]byte(d.victim))
	ep := c.endpoint(f, "damage")
	defer ep.Close()
	if len(at) != 1 {
		t.Fatalf("the record is at %v", at)
	}
	word, err := rdma.ReadWord(ep, "read", at[0].Add(64), patience)
	b := ep.Batch()
	defer b.Release()
	b.WriteWord(at[0].Add(64), word^1)
	if err = errors.Join(err, rdma.Do(ep, b, patience)); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("entry of shard %d at %#x of server 0", config.Find(kv.Hash([]byte(d.victim))), at[0].Offset())
	began := time.Now()
	_, err = s.Get([]byte(d.victim))
	for _, err := range []error{err, s.Update([]byte(d.victim), d.value), s.Insert([]byte(d.victim), d.value),
		s.Delete([]byte(d.victim))} {
		if !errors.Is(err, client.ErrDamaged) || errors.Is(err, client.ErrUncertain) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if got, err := s.Get([]byte("other-0")); err != nil || !bytes.Equal(got, d.value) {
		t.Errorf("another record is %q, %v", got, err)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("the client waited for %v", took)
	}
}
