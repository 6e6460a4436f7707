package storetest

import (
	"errors"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/workloads/check"
)

// model plays random operations by several workers in turn against a map: rapid shrinks what fails.
func (h *Harness) model(t rapid.TB) { rapid.Check(t, h.property) }

func (h *Harness) property(t *rapid.T) {
	f, end, err := h.fresh(1)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	var workers []*worker
	for range 3 {
		w, err := h.worker(f, "model")
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
	}
	m := &modelled{h: h, t: t, workers: workers, pairs: map[string]string{}}
	t.Repeat(map[string]func(*rapid.T){
		"get":    func(t *rapid.T) { m.get(t, m.key(t)) },
		"insert": func(t *rapid.T) { m.write(t, check.Insert) },
		"update": func(t *rapid.T) { m.write(t, check.Update) },
		"delete": func(t *rapid.T) { m.write(t, check.Delete) },
	})
	for _, key := range slices.Sorted(maps.Keys(m.pairs)) { // sorted: rapid must see the same draws again
		m.get(t, key)
	}
	for _, w := range workers {
		if err := w.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	if err := h.sound(f, false); err != nil {
		t.Fatal(err)
	}
}

// modelled is a store beside the map that it should be.
type modelled struct {
	h       *Harness
	t       *rapid.T
	workers []*worker
	pairs   map[string]string
	made    int
}

func (m *modelled) key(t *rapid.T) string {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"a", "b", "c", "a\x00", "\x00", "\xff\xff"}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, m.h.MaxKey), func(p []byte) string { return string(p) }),
	).Draw(t, "key")
}

func (m *modelled) worker(t *rapid.T) *worker {
	return m.workers[rapid.IntRange(0, len(m.workers)-1).Draw(t, "worker")]
}

func (m *modelled) get(t *rapid.T, key string) {
	got, err := m.worker(t).Get([]byte(key))
	want, there := m.pairs[key]
	if there && (err != nil || string(got) != want) {
		t.Fatalf("get %q: got %d bytes %.20x, %v; want %d bytes %.20x", key, len(got), got, err, len(want), want)
	}
	if !there && !errors.Is(err, client.ErrNotFound) {
		t.Fatalf("get %q: got %d bytes, %v; want ErrNotFound", key, len(got), err)
	}
}

func (m *modelled) write(t *rapid.T, kind check.Kind) {
	key, w := m.key(t), m.worker(t)
	_, there := m.pairs[key]
	var value []byte
	if kind != check.Delete {
		m.made++
		value = check.MakeValue(nil, 0, m.made, rapid.IntRange(0, m.h.MaxValue).Draw(t, "size"))
	}
	var want error
	switch {
	case kind == check.Insert && there:
		want = client.ErrExists
	case kind != check.Insert && !there:
		want = client.ErrNotFound
	}
	err := kind.Do(w, []byte(key), value)
	if !errors.Is(err, want) {
		t.Fatalf("%s %q: got error %v, want %v", kind, key, err, want)
	}
	switch {
	case err != nil:
	case kind == check.Delete:
		delete(m.pairs, key)
	default:
		m.pairs[key] = string(value)
	}
}
