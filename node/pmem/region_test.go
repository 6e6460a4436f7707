package pmem

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma/memcopy"
)

var small = Options{Memory: 4096, Table: 8192}

// recorder is a medium that logs its calls: disk is what survives a loss of power.
type recorder struct {
	m, disk []byte
	calls   []string
	before  func() // of each Sync
	fail    error
}

func (r *recorder) Sync() error {
	if r.before != nil {
		r.before()
	}
	r.calls = append(r.calls, "sync")
	if r.fail != nil {
		return r.fail
	}
	memcopy.Load(r.disk, unsafe.Pointer(unsafe.SliceData(r.m)))
	return nil
}

func (r *recorder) Zero(uint64, uint64) (bool, error) { return false, nil }
func (r *recorder) Close() error                      { return nil }

// onRecorder opens a region of a disk's content in memory, which a loss of power brings back to
// that.
func onRecorder(t *testing.T, disk []byte, o Options) (*Region, *recorder) {
	t.Helper()
	size := int(o.Bytes())
	var maps [2][]byte // no Go slices: what is read while it is synced is no race, as on a real disk
	for i := range maps {
		var err error
		if maps[i], err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(maps[i]) })
	}
	m := maps[0]
	rec := &recorder{m: m, disk: maps[1]}
	copy(rec.disk, disk)
	copy(m, rec.disk)
	r, err := On(m, rec, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return r, rec
}

// crashed is the disk after a loss of power: of the words that were stored since the last Sync any
// have survived.
func (r *recorder) crashed(rnd *rand.Rand) []byte {
	p := append([]byte(nil), r.disk...)
	odds := rnd.IntN(5)
	for at := 0; at < len(p); at += 8 {
		if rnd.IntN(4) < odds {
			copy(p[at:at+8], r.m[at:at+8])
		}
	}
	return p
}

// onImage opens a region of a disk's content.
func onImage(t *testing.T, disk []byte, o Options) (*Region, *recorder) {
	t.Helper()
	size := int(o.Bytes())
	rec := &recorder{m: make([]byte, size), disk: make([]byte, size)}
	copy(rec.disk, disk)
	copy(rec.m, disk)
	r, err := On(rec.m, rec, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return r, rec
}

// TestTableCrash loses power before each Sync and behind each Put, at any subset of words. What was
// put is there, and of the Put under way the old or the new value. Short tables are rewritten every
// few records.
func TestTableCrash(t *testing.T) {
	o := small
	o.Power = true
	for seed := range uint64(15) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		want, pending := map[string]string{}, ""
		var disk []byte
		check := func(when string, disk []byte) {
			again, _ := onImage(t, disk, o)
			for key := range want {
				if got := string(again.table.Get(key)); got != want[key] && (pending == "" || got != pending) {
					t.Fatalf("seed %d, %s: record %s is %.20q, want %.20q or %.20q", seed, when, key, got, want[key],
						pending)
				}
			}
		}
		for range 4 { // a machine's lives
			r, rec := onImage(t, disk, o)
			for key := range want { // a Put under way may have been done
				want[key] = string(r.table.Get(key))
			}
			crash := 10 + rnd.IntN(30)
			rec.before = func() {
				check("before a sync", rec.crashed(rnd))
				if crash--; crash == 0 {
					disk = rec.crashed(rnd)
				}
			}
			for n := 0; crash > 0; n++ {
				key := fmt.Sprint("k", rnd.IntN(4))
				pending = fmt.Sprintf("%d.%d.%d.%s", seed, crash, n, strings.Repeat("x", rnd.IntN(700)))
				if err := r.table.Put(key, []byte(pending)); err != nil {
					t.Fatal(err)
				}
				if crash > 0 {
					want[key], pending = pending, ""
					check("behind a Put", rec.crashed(rnd))
				}
			}
			if pending != "" {
				check("in the next life", disk)
				pending = ""
			}
		}
	}
}

// TestTableLeftovers loses power when a rewrite has stored its records and not its header, of which
// the next rewrite has the generation. It has fewer records: those behind them are none of its.
func TestTableLeftovers(t *testing.T) {
	o := small
	o.Power = true
	r, rec := onImage(t, nil, o)
	value := make([]byte, 64)
	put := func(key string) {
		value[0]++ // what a record has already is not stored again
		if err := r.table.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	put("a")
	put("b")
	var disk []byte
	gen := r.table.gen
	rec.before = func() {
		if r.table.gen > gen && disk == nil {
			disk = slices.Clone(rec.m)
		}
	}
	for disk == nil {
		put("a")
	}
	r, rec = onImage(t, disk, o)
	if r.table.gen != gen {
		t.Fatalf("generation %d, want %d: its header was not written", r.table.gen, gen)
	}
	if err := r.table.Reset("a", value); err != nil {
		t.Fatal(err)
	}
	r, _ = onImage(t, rec.disk, o)
	if keys := r.table.Keys(""); !slices.Equal(keys, []string{"a"}) {
		t.Errorf("records %v, want a alone", keys)
	}
}

// TestCreateCrash loses power while a region is made: it is made again.
func TestCreateCrash(t *testing.T) {
	o := small
	o.Power = true
	for seed := range uint64(140) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		size := int(o.Bytes())
		rec := &recorder{m: make([]byte, size), disk: make([]byte, size)}
		at, syncs := int(seed%7), 0
		var crash []byte
		rec.before = func() {
			if syncs == at {
				crash = rec.crashed(rnd)
			}
			syncs++
		}
		if _, err := On(rec.m, rec, o); err != nil {
			t.Fatal(err)
		}
		if crash == nil {
			crash = rec.crashed(rnd)
		}
		r, _ := onImage(t, crash, o)
		if keys := r.table.Keys(""); len(keys) != 0 {
			t.Fatalf("seed %d: records %v", seed, keys)
		}
	}
}

// TestFence has the medium log its calls: no Fence returns before a Sync that began behind the
// store.
func TestFence(t *testing.T) {
	for _, power := range []bool{false, true} {
		o := small
		o.Power = power
		r, rec := onRecorder(t, nil, o)
		rec.calls = nil
		word := (*uint64)(r.Base())
		for round := range uint64(3) {
			r.Begin()
			r.Mark(8)
			memcopy.CompareSwap(word, round, round+1)
			r.End()
			want := map[bool]int{true: int(round)}[power]
			if len(rec.calls) != want {
				t.Errorf("power %v: calls %v before a fence, want %d", power, rec.calls, want)
			}
			for range 2 {
				if err := r.Fence(); err != nil {
					t.Error(err)
				}
			}
			if power {
				want++
			}
			if len(rec.calls) != want || power && rec.disk[headerPage+o.Table] != byte(round+1) {
				t.Errorf("power %v: calls %v, want %d; the disk has %d", power, rec.calls, want,
					rec.disk[headerPage+o.Table])
			}
		}
		if c := r.Counters(); c.Stores == 0 || c.Fences < 2 || c.Bytes < 8 || c.Syncs == 0 && power ||
			!power && c.Syncs > 0 {
			t.Errorf("power %v: %+v", power, c)
		}
	}
}

// TestFenceBehindKill: what a process stored that was killed before its Fence is durable behind one
// of the next process, which reads it, and stores nothing.
func TestFenceBehindKill(t *testing.T) {
	o := small
	o.Power = true
	killed, rec := onRecorder(t, nil, o)
	killed.Begin()
	killed.Mark(8)
	memcopy.CompareSwap((*uint64)(killed.Base()), 0, 7)
	killed.End()
	next, err := On(rec.m, rec, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Fence(); err != nil || rec.disk[headerPage+o.Table] != 7 {
		t.Errorf("the disk has %d behind a fence: %v", rec.disk[headerPage+o.Table], err)
	}
}

// TestSharedSync has stores of many tasks at once: each finds its own, and whatever it read, on the
// disk behind its Fence, and they share calls of Sync.
func TestSharedSync(t *testing.T) {
	o := small
	o.Power = true
	r, rec := onRecorder(t, nil, o)
	rec.before = func() {
		for range 5 {
			runtime.Gosched() // while others store, and wait
		}
	}
	const tasks, rounds = 8, 50
	at := func(n int) *uint64 { return (*uint64)(unsafe.Add(r.Base(), 8*n)) }
	onDisk := func(n int) uint64 { // read as another task's Sync may write it
		return memcopy.LoadWord((*uint64)(unsafe.Pointer(&rec.disk[headerPage+o.Table+uint64(8*n)])))
	}
	var group sync.WaitGroup
	var failed atomic.Pointer[string]
	for task := range tasks {
		group.Go(func() {
			for n := range uint64(rounds) {
				r.Begin()
				read := memcopy.LoadWord(at((task + 1) % tasks))
				r.Mark(8)
				memcopy.CompareSwap(at(task), n, n+1)
				r.End()
				if err := r.Fence(); err != nil {
					t.Error(err)
				}
				own, other := onDisk(task), onDisk((task+1)%tasks)
				if own != n+1 || other < read {
					s := fmt.Sprintf("task %d: the disk has %d and %d, want %d and at least %d", task, own, other, n+1,
						read)
					failed.Store(&s)
				}
			}
		})
	}
	group.Wait()
	if s := failed.Load(); s != nil {
		t.Error(*s)
	}
	if c := r.Counters(); c.Syncs >= c.Fences {
		t.Errorf("%d fences called Sync %d times", c.Fences, c.Syncs)
	}
}

// TestFailedSync: what survives is unknown for good.
func TestFailedSync(t *testing.T) {
	o := small
	o.Power = true
	r, rec := onRecorder(t, nil, o)
	rec.fail = unix.EIO
	if err := r.table.Put("k", []byte("v")); !errors.Is(err, unix.EIO) {
		t.Errorf("put: %v", err)
	}
	rec.fail = nil
	if err := r.Fence(); !errors.Is(err, unix.EIO) {
		t.Errorf("a fence behind a failed one: %v", err)
	}
}

func TestTable(t *testing.T) {
	r, _ := onRecorder(t, nil, small)
	tab := r.Table()
	if tab.Get("a") != nil || len(tab.Keys("")) != 0 {
		t.Error("a new table has records")
	}
	for n := range 1000 { // it is rewritten all the time
		for _, key := range []string{"x/b", "x/a", "y"} {
			if err := tab.Put(key, fmt.Append(nil, key, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := tab.Put("large", make([]byte, tab.Room()-100))
	if !errors.Is(err, ErrFull) || tab.Get("large") != nil {
		t.Errorf("too large: %v", err)
	}
	if got := fmt.Sprintln(tab.Keys("x/"), string(tab.Get("x/a")),
		string(tab.Get("y"))); got != "[x/a x/b] x/a999 y999\n" {
		t.Error(got)
	}
	if err := tab.Reset("only", []byte("this")); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprintln(tab.Keys(""), string(tab.Get("only"))); got != "[only] this\n" {
		t.Error(got)
	}
}

// TestOpen opens a region's file, which remembers.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "pm")
	r, err := Open(file, small)
	if err != nil {
		t.Fatal(err)
	}
	if s, why := r.Survives(); s != Process || why == "" {
		t.Errorf("survives %v: %s", s, why)
	}
	memcopy.CompareSwap((*uint64)(r.Base()), 0, 42)
	if err := r.Table().Put("k", []byte("v")); err != nil {
		t.Error(err)
	}
	if _, err := Open(file, small); !errors.Is(err, ErrInUse) {
		t.Errorf("a second time: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if r, err = Open(file, small); err != nil {
		t.Fatal(err)
	}
	if got := memcopy.LoadWord((*uint64)(r.Base())); got != 42 || string(r.Table().Get("k")) != "v" {
		t.Errorf("it forgot: %d, %q", got, r.Table().Get("k"))
	}
	if err := r.Clear(); err != nil || memcopy.LoadWord((*uint64)(r.Base())) != 0 || r.Table().Get("k") == nil {
		t.Errorf("clear: %v", err)
	}
	r.Close()
}

// TestOpenOthers opens what cannot be the file of a region, and changes nothing in it.
func TestOpenOthers(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "pm")
	r, err := Open(file, small)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := func(off int, p string) []byte {
		q := append([]byte(nil), whole...)
		copy(q[off:], p)
		return q
	}
	half := small
	half.Memory = 8192
	for _, c := range []struct {
		name    string
		content []byte
		o       Options
		want    error
		says    string
	}{
		{"as it was", whole, small, nil, ""},
		{"empty", nil, small, nil, ""},
		{"larger", whole, half, ErrSize, "it has 16384 bytes, and 20480 are wanted"},
		{"cut short", whole[:9000], small, ErrCut, "it has 9000 of 16384 bytes"},
		{"cut short, and larger memory wanted", whole[:9000], half, ErrCut, "it has 9000 of 16384 bytes"},
		{"cut in its header", whole[:20], small, ErrCut, "it has 20 of 16384 bytes"},
		{"another version", at(0, "farkv pmem 2"), small, ErrVersion, "its format is 2, and this one reads 1"},
		{"another version's size", append([]byte("farkv pmem 12\n"), whole...), small, ErrVersion, "its format is 12"},
		{"no version", at(0, "farkv pmem x"), small, ErrDamaged, "its header's checksum is wrong"},
		{"another division", whole, Options{Memory: 8192, Table: 4096}, ErrSize, "it holds 4096 bytes of memory"},
		{"other content", []byte("hello, world"), small, ErrForeign, "there is something else in it (hint: "},
		{"other content of that size", at(0, "hello, world"), small, ErrForeign, "there is something else"},
		{"zeros first", at(0, "\x00\x00\x00\x00\x00\x00\x00\x00hello"), small, ErrForeign, "there is something else"},
		{"torn header", at(20, "\xff"), small, ErrDamaged, "its header's checksum is wrong"},
		{"torn table", at(headerPage+4096, "\xff\xff\xff\xff\xff\xff\xff\xff\xff"), small, ErrDamaged, "neither half"},
	} {
		if err := os.WriteFile(file, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Open(file, c.o)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) ||
			err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil {
			r.Close()
		} else if now, _ := os.ReadFile(file); string(now) != string(c.content) {
			t.Errorf("%s: the file was changed", c.name)
		}
	}
	if _, err := Open(dir, small); !errors.Is(err, unix.EISDIR) || strings.Count(err.Error(), dir) != 1 {
		t.Errorf("a folder: %v", err)
	}
	if _, err := Open(os.DevNull, small); !errors.Is(err, ErrForeign) && !errors.Is(err, unix.EPERM) {
		t.Errorf("a device: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), file); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, small); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link: %v", err)
	}
}

// TestHolds looks for what a pool has stored, in files that are no region, too.
func TestHolds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pm")
	want := func(what string, want bool) {
		t.Helper()
		if got, err := Holds(file); got != want || err != nil {
			t.Errorf("%s: %t, %v", what, got, err)
		}
	}
	r, err := Open(file, Options{Memory: 128 << 10, Table: 8192})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Table().Put("k", []byte("v")); err != nil {
		t.Error(err)
	}
	want("a region that is not used yet", false)
	r.store(headerPage+8192+(128<<10)-8, []byte("the last"))
	want("a region", true)
	r.Close()
	for text, holds := range map[string]bool{"": false, "x": true, "\x00": false,
		string(make([]byte, 1<<17)) + "x": true} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		want(fmt.Sprintf("%d bytes", len(text)), holds)
	}
	if _, err := Holds(filepath.Dir(file)); err == nil {
		t.Error("a folder is looked into")
	}
}
