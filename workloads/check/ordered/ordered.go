// Package ordered tests stores with scans in the order of keys, in addition to package storetest.
// It compares a store with a map and the sorted list of its keys.
package ordered

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/farkv/farkv/client"
)

// Store is one worker's view.
type Store interface {
	client.Store
	client.Scanner
}

// Pool is an empty one, with room for Pairs pairs of keys and values of up to 100 bytes.
type Pool struct {
	Pairs   int
	InOrder bool // keys are inserted in their order, and not in a random one
	// Workers are two views of it.
	Workers [2]Store
	// Check expects that nothing is wrong, and that there are so many pairs. It returns what was
	// counted.
	Check func(pairs int) map[string]uint64
}

// model is a map, and its keys in order.
type model struct {
	t     *testing.T
	pairs map[string]string
	keys  []string
	rng   *rand.Rand
}

// key is that of the i-th pair.
func (m *model) key(i int, inOrder bool) string {
	if !inOrder {
		i = m.rng.IntN(1e6)
	}
	return fmt.Sprintf("key%06d", i)
}

func (m *model) value() string {
	return string(bytes.Repeat([]byte{byte('a' + m.rng.IntN(26))}, m.rng.IntN(20)+m.rng.IntN(2)*80))
}

func (m *model) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) want(err, want error) {
	m.t.Helper()
	if !errors.Is(err, want) {
		m.t.Errorf("got %v, want an error wrapping %v", err, want)
	}
}

// Map fills a pool, changes it and empties it, by both workers, and compares it with a map all the
// while, by GETs and by scans. It returns what was counted when it was full, when a tenth of the
// keys was left, and when it was empty.
func Map(t *testing.T, p Pool) (full, few, empty map[string]uint64) {
	t.Helper()
	m := &model{t: t, pairs: map[string]string{}, rng: rand.New(rand.NewPCG(1, 2))}
	s, other := p.Workers[0], p.Workers[1]
	m.fill(p)
	full = p.Check(len(m.keys))
	m.compare(other)
	for i, k := range m.keys {
		if i%3 == 0 {
			m.pairs[k] = m.value()
			m.must(other.Update([]byte(k), []byte(m.pairs[k])))
		}
	}
	m.compare(s)
	m.rng.Shuffle(len(m.keys), func(i, j int) { m.keys[i], m.keys[j] = m.keys[j], m.keys[i] })
	left := len(m.keys) * 9 / 10
	m.remove(s, m.keys[:left])
	m.keys = m.keys[left:]
	slices.Sort(m.keys)
	few = p.Check(len(m.keys))
	m.compare(other)
	m.remove(other, m.keys)
	m.keys = nil
	empty = p.Check(0)
	m.compare(s)
	return full, few, empty
}

func (m *model) fill(p Pool) {
	m.t.Helper()
	s, other := p.Workers[0], p.Workers[1]
	for i := range p.Pairs {
		k, v := m.key(i, p.InOrder), m.value()
		err := s.Insert([]byte(k), []byte(v))
		if _, there := m.pairs[k]; there {
			m.want(err, client.ErrExists)
			continue
		}
		m.must(err)
		m.pairs[k], m.keys = v, append(m.keys, k)
		if i == p.Pairs/10 { // what the other one remembers is outdated soon
			for _, k := range m.keys {
				_, err := other.Get([]byte(k))
				m.must(err)
			}
		}
	}
	slices.Sort(m.keys)
}

func (m *model) remove(s Store, keys []string) {
	m.t.Helper()
	for _, k := range keys {
		m.must(s.Delete([]byte(k)))
		delete(m.pairs, k)
	}
}

// compare compares what a worker finds with the map.
func (m *model) compare(s Store) {
	m.t.Helper()
	for _, k := range m.keys {
		if v, err := s.Get([]byte(k)); err != nil || string(v) != m.pairs[k] {
			m.t.Fatalf("%s is %q, %v, want %q", k, v, err, m.pairs[k])
		}
	}
	for _, k := range []string{"", "a", "key", "key1", "z", "key555555x"} { // that no key is
		_, err := s.Get([]byte(k))
		m.want(err, client.ErrNotFound)
		m.want(s.Update([]byte(k), nil), client.ErrNotFound)
		m.want(s.Update([]byte(k), make([]byte, 50)), client.ErrNotFound)
		m.want(s.Delete([]byte(k)), client.ErrNotFound)
	}
	for _, from := range []string{"", "key3", "key999", "zzz", string(bytes.Repeat([]byte("k"), 300))} {
		for _, n := range []int{-1, 0, 1, 7, 100, len(m.keys), len(m.keys) + 1, 1 << 40} {
			m.scan(s, from, n)
		}
	}
	seen := 0
	m.must(s.Scan(nil, 1<<30, func(_, _ []byte) bool { seen++; return seen < 3 }))
	if seen != min(3, len(m.keys)) {
		m.t.Errorf("a scan that is stopped behind the third pair has %d", seen)
	}
}

// scan compares a scan with the map.
func (m *model) scan(s Store, from string, n int) {
	m.t.Helper()
	first, _ := slices.BinarySearch(m.keys, from)
	want := m.keys[first:]
	if n < len(want) {
		want = want[:max(n, 0)]
	}
	var got []string
	m.must(s.Scan([]byte(from), n, func(k, v []byte) bool {
		m.t.Helper()
		if m.pairs[string(k)] != string(v) {
			m.t.Errorf("the scan has %s: %q, want %q", k, v, m.pairs[string(k)])
		}
		got = append(got, string(k))
		return true
	}))
	if !slices.Equal(got, want) {
		m.t.Fatalf("a scan of %d from %.10q has %d keys, want %d", n, from, len(got), len(want))
	}
}
