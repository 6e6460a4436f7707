package check

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table is a correct store, and with a flaw a broken one.
type table struct {
	mu   sync.Mutex
	m    map[string][]byte
	flaw string
}

// view is a worker's Store on a table.
type view struct {
	*table
	cache map[string][]byte
}

func (v *view) read(key []byte) ([]byte, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, ok := v.m[string(key)]
	return p, ok
}

// change decides under the lock, or, with the flaw "race", on what it read before.
func (v *view) change(key, value []byte, want bool, no error) error {
	if v.flaw == "race" {
		if _, ok := v.read(key); ok != want {
			return no
		}
		runtime.Gosched()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.m[string(key)]; ok != want && v.flaw != "race" {
		return no
	}
	if value == nil {
		delete(v.m, string(key))
	} else {
		v.m[string(key)] = bytes.Clone(value)
	}
	return nil
}

func (v *view) Get(key []byte) ([]byte, error) {
	if p, ok := v.cache[string(key)]; ok && v.flaw == "stale" {
		delete(v.cache, string(key))
		return p, nil
	}
	p, ok := v.read(key)
	if !ok {
		return nil, client.ErrNotFound
	}
	if v.flaw == "torn" && len(p) > 16 {
		p = append(bytes.Clone(p[:16]), make([]byte, len(p)-16)...)
	}
	v.cache[string(key)] = p
	return p, nil
}

func (v *view) Insert(key, value []byte) error { return v.change(key, value, false, client.ErrExists) }
func (v *view) Update(key, value []byte) error { return v.change(key, value, true, client.ErrNotFound) }
func (v *view) Delete(key []byte) error        { return v.change(key, nil, true, client.ErrNotFound) }
func (v *view) Close() error                   { return nil }

// play runs workers on one table and returns the history.
func play(tb *table, workers, keys, ops int) History {
	began := time.Now()
	now := func() time.Duration { return time.Since(began) }
	recorders := make([]*Recorder, workers)
	var wg sync.WaitGroup
	for w := range workers {
		r := NewRecorder(w, &view{tb, map[string][]byte{}}, now)
		recorders[w] = r
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for i := range ops {
				key := fmt.Appendf(nil, "key-%d", rng.IntN(keys))
				value := MakeValue(nil, w, i+1, 8+rng.IntN(40))
				switch rng.IntN(6) {
				case 0:
					r.Insert(key, value)
				case 1:
					r.Update(key, value)
				case 2:
					r.Delete(key)
				default:
					r.Get(key)
				}
				if i%8 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	wg.Wait()
	var h History
	for _, r := range recorders {
		h = append(h, r.History()...)
	}
	return h
}

func TestTable(t *testing.T) {
	h := play(&table{m: map[string][]byte{}}, 8, 20, 2500)
	if len(h) != 20000 {
		t.Fatalf("%d operations recorded", len(h))
	}
	if err := Linearizable(h, Options{}); err != nil {
		t.Fatal(err)
	}
}

func TestBrokenTables(t *testing.T) {
	for _, flaw := range []string{"race", "stale", "torn"} {
		t.Run(flaw, func(t *testing.T) {
			h := play(&table{m: map[string][]byte{}, flaw: flaw}, 8, 4, 2000)
			var v *Violation
			if err := Linearizable(h, Options{}); !errors.As(err, &v) {
				t.Fatalf("the checker let it pass: %v", err)
			}
			t.Log(v)
		})
	}
}

func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Answer
	}{
		{nil, OK},
		{fmt.Errorf("get: %w", client.ErrNotFound), NotFound},
		{client.ErrExists, Exists},
		{client.ErrTooLarge, Refused},
		{rdma.ErrFull, Refused},
		{fmt.Errorf("%w: %w", client.ErrUncertain, client.ErrNotFound), Uncertain},
		{&rdma.OpError{Err: rdma.ErrNodeDown}, Uncertain},
		{rdma.ErrTimeout, TimedOut},
		{fmt.Errorf("%w: %w", client.ErrUncertain, rdma.ErrTimeout), Uncertain},
		{client.ErrDamaged, Failed},
	} {
		if got := classify(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

// stuck is a store in which the second INSERT panics, as if the worker died inside it.
type stuck struct {
	client.Store
	calls int
}

func (s *stuck) Insert(key, value []byte) error {
	if s.calls++; s.calls == 2 {
		panic("dead")
	}
	return nil
}

// What a killed process logged is its history, its last call pending, whole last line or not.
func TestLog(t *testing.T) {
	var log bytes.Buffer
	r := NewRecorder(3, &stuck{}, func() time.Duration { return 5 })
	r.LogTo(&log)
	func() {
		defer func() { recover() }()
		r.Insert([]byte{0xff, 0}, MakeValue(nil, 3, 1, 8))
		r.Insert([]byte("b"), MakeValue(nil, 3, 2, 8))
	}()
	want := r.History()
	if len(want) != 2 || want[0].Answer != OK || want[1].Answer != Pending {
		t.Fatalf("recorded %v", want)
	}
	for _, tail := range []string{"", `{"w":3,"n":`} {
		got, err := Decode(bytes.NewReader(append(bytes.Clone(log.Bytes()), tail...)))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("tail %q: got %v, %v, want %v", tail, got, err, want)
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestLogFails(t *testing.T) {
	r := NewRecorder(0, &stuck{}, func() time.Duration { return 0 })
	r.LogTo(brokenPipe{})
	if err := r.Insert(nil, nil); err == nil {
		t.Fatal("an operation was carried out that its log does not have")
	}
}

func TestCodec(t *testing.T) {
	h := play(&table{m: map[string][]byte{}}, 3, 3, 100)
	h[5].Answer, h[5].Return, h[5].Err = Uncertain, Never, "lost the master"
	var b bytes.Buffer
	if err := h.Encode(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Decode(&b)
	if err != nil || !reflect.DeepEqual(got, h) {
		t.Fatalf("%v: got %d operations of %d back, or changed ones", err, len(got), len(h))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"w":1,"n":0,"op":1,"key":"aw==","val":5,"ans":0,"call":1,"ret":2}`))
	f.Add([]byte(`{"op":9}`))
	f.Add([]byte(`{"w":1}` + "\n{"))
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := Decode(bytes.NewReader(p))
		if err != nil {
			return
		}
		for i := range h {
			_ = h[i].String()
		}
		if len(h) < 8 {
			Linearizable(h, Options{Timeout: time.Second})
		}
	})
}

func TestValues(t *testing.T) {
	seen := map[Value]bool{}
	for size := MinValue; size < 100; size++ {
		p := MakeValue(nil, 5, 9, size)
		id := Identify(p)
		if len(p) != size || id.String() != "w5.9" || seen[id] {
			t.Fatalf("%d bytes: %x is %v", size, p, id)
		}
		seen[id] = true
		if other := Identify(p[:size-1]); other&foreign == 0 {
			t.Fatalf("%d bytes cut to %d taken for %v", size, size-1, other)
		}
		for i := range p {
			p[i] ^= 1
			if Identify(p) == id {
				t.Fatalf("%d bytes with byte %d changed taken for the same", size, i)
			}
			p[i] ^= 1
		}
	}
}

// scanned is a store with scans that yield the given pairs.
type scanned struct {
	stuck
	pairs []string
	err   error
}

func (s *scanned) Scan(_ []byte, _ int, yield func(key, value []byte) bool) error {
	for _, k := range s.pairs {
		yield([]byte(k), MakeValue(nil, 1, 1, MinValue))
	}
	return s.err
}

// TestRecordScan: a scan is a Get of each key in its range, and none where it is wrong.
func TestRecordScan(t *testing.T) {
	keys := []string{"a", "b", "c", "d"}
	for _, c := range []struct {
		from  string
		n     int
		pairs []string
		err   error
		want  string // Gets: those that found something in capital letters
		fails error
	}{
		{from: "", n: 9, pairs: []string{"a", "c"}, want: "AbCd"},
		{from: "b", n: 9, pairs: []string{"c"}, want: "bCd"},
		{from: "", n: 2, pairs: []string{"a", "c"}, want: "AbC"}, // of d it says nothing
		{from: "e", n: 9, want: ""},
		{from: "", n: 0, want: ""},
		{from: "", n: -1, want: ""},
		{from: "", n: 9, pairs: []string{"a"}, err: rdma.ErrTimeout, fails: rdma.ErrTimeout},
		{from: "b", n: 9, pairs: []string{"a"}, fails: ErrScan},
		{from: "", n: 1, pairs: []string{"a", "b"}, fails: ErrScan},
		{from: "", n: 9, pairs: []string{"b", "a"}, fails: ErrScan},
		{from: "", n: 9, pairs: []string{"a", "a"}, fails: ErrScan},
		{from: "", n: 9, pairs: []string{"x"}, fails: ErrScan},
	} {
		r := NewRecorder(1, &scanned{pairs: c.pairs, err: c.err}, func() time.Duration { return 5 })
		err := r.Scan(keys, c.from, c.n)
		if !errors.Is(err, c.fails) {
			t.Errorf("%+v: %v", c, err)
		}
		got := ""
		for _, op := range r.Found() {
			if op.Kind != Get || op.Call != 5 || (op.Answer == OK) != (op.Value != 0) {
				t.Errorf("%+v: %v", c, &op)
			}
			if op.Answer == OK {
				op.Key = bytes.ToUpper(op.Key)
			}
			got += string(op.Key)
		}
		if h := r.History(); got != c.want || len(h) != 1 || h[0].Kind != Scan ||
			(h[0].Answer == OK) != (c.fails == nil) {
			t.Errorf("%+v: %q, %v", c, got, h)
		}
		if err := Linearizable(r.History(), Options{}); err != nil {
			t.Errorf("a scan by itself is out of order: %v", err)
		}
	}
}
