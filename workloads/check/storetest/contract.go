package storetest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/workloads/check"
)

// script runs operations one after the other, compares their answers and keeps the first that is
// wrong.
type script struct {
	s   client.Store
	err error
}

func (c *script) say(format string, a ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, a...)
	}
}

// answer compares an operation's error. The caller's buffers are its own again: they are
// overwritten.
func (c *script) answer(what string, got, want error, key []byte, buffers ...[]byte) {
	if !errors.Is(got, want) || want == nil && got != nil {
		c.say("%s %.40q: got error %v, want %v", what, key, got, want)
	}
	for _, b := range buffers {
		for i := range b {
			b[i] = 0xee
		}
	}
}

func (c *script) do(kind check.Kind, key, value []byte, want error) {
	if c.err != nil {
		return // each of what follows might take its timeout
	}
	k, v := bytes.Clone(key), bytes.Clone(value)
	c.answer(kind.String(), kind.Do(c.s, k, v), want, key, k, v)
}

func (c *script) insert(key, value []byte, want error) { c.do(check.Insert, key, value, want) }
func (c *script) update(key, value []byte, want error) { c.do(check.Update, key, value, want) }
func (c *script) remove(key []byte, want error)        { c.do(check.Delete, key, nil, want) }

func (c *script) get(key, want []byte) {
	if c.err != nil {
		return
	}
	k := bytes.Clone(key)
	v, err := c.s.Get(k)
	if err != nil || !bytes.Equal(v, want) {
		c.say("get %.40q: got %d bytes %.20x and error %v, want %d bytes %.20x", key, len(v), v, err, len(want), want)
	}
}

func (c *script) miss(key []byte) {
	c.do(check.Get, key, nil, client.ErrNotFound)
}

// contract goes through what client.Store promises, with one worker at a time.
func (h *Harness) contract() error {
	for _, part := range []struct {
		name string
		run  func(c *script)
	}{
		{"errors", contractErrors},
		{"keys", h.contractKeys},
		{"sizes", h.contractSizes},
		{"many", contractMany},
	} {
		if err := h.contractPart(part.run); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return h.contractWorkers()
}

func (h *Harness) contractPart(run func(c *script)) error {
	f, end, err := h.fresh(1)
	if err != nil {
		return err
	}
	defer end()
	w, err := h.worker(f, "contract")
	if err != nil {
		return err
	}
	c := &script{s: w}
	run(c)
	if err := w.Close(); err != nil {
		c.say("close: %w", err)
	}
	if c.err != nil {
		return c.err
	}
	return h.sound(f, false)
}

func contractErrors(c *script) {
	key, one, two := []byte("key"), []byte("one"), []byte("two")
	c.miss(key)
	c.update(key, one, client.ErrNotFound)
	c.remove(key, client.ErrNotFound)
	c.miss(key)
	c.insert(key, one, nil)
	c.get(key, one)
	c.insert(key, two, client.ErrExists)
	c.get(key, one)
	c.update(key, two, nil)
	c.get(key, two)
	c.remove(key, nil)
	c.miss(key)
	c.remove(key, client.ErrNotFound)
	c.update(key, one, client.ErrNotFound)
	c.miss(key)
	c.insert(key, two, nil)
	c.get(key, two)
	for i := range 200 { // the same key over and over: memory and log are reused
		v := fmt.Appendf(nil, "value %d", i)
		c.update(key, v, nil)
		c.get(key, v)
		c.remove(key, nil)
		c.insert(key, v, nil)
	}
}

// contractKeys has keys that differ where a careless comparison looks away.
func (h *Harness) contractKeys(c *script) {
	long := bytes.Repeat([]byte{0xff}, h.MaxKey)
	keys := [][]byte{
		[]byte("a"), []byte("a\x00"), []byte("a\x00\x00"), []byte("\x00a"), []byte("A"), []byte("\x00"),
		[]byte("\x00\x00"),
		[]byte("\xff"), []byte("\xff\xff"), []byte("\xfe\xff\x80"), []byte("key \"1\"\n"), []byte("schlüssel"),
		long, long[1:], append(bytes.Clone(long[1:]), 0xfe), append([]byte{0xfe}, long[1:]...),
	}
	for i, k := range keys {
		c.miss(k)
		c.insert(k, fmt.Appendf(nil, "value %d", i), nil)
	}
	for i, k := range keys {
		c.get(k, fmt.Appendf(nil, "value %d", i))
		c.insert(k, nil, client.ErrExists)
	}
	for i, k := range keys {
		if i%2 == 0 {
			c.remove(k, nil)
		}
	}
	for i, k := range keys {
		if i%2 == 0 {
			c.miss(k)
		} else {
			c.get(k, fmt.Appendf(nil, "value %d", i))
		}
	}
}

// contractSizes has values of every size class, among them the empty one, growing and shrinking in
// place.
func (h *Harness) contractSizes(c *script) {
	pattern := make([]byte, h.MaxValue+1)
	for i := range pattern {
		pattern[i] = byte(i*7 + i>>8)
	}
	key, full := []byte("key"), bytes.Repeat([]byte("k"), h.MaxKey)
	c.insert(key, nil, nil)
	c.get(key, nil)
	for n := 0; n <= h.MaxValue; n += 1 + n/9 {
		c.update(key, pattern[:n], nil)
		c.get(key, pattern[:n])
		c.update(key, pattern[:n/3], nil)
		c.get(key, pattern[:n/3])
	}
	c.insert(full, pattern[:h.MaxValue], nil)
	c.get(full, pattern[:h.MaxValue])
	c.update(full, pattern, client.ErrTooLarge)
	c.get(full, pattern[:h.MaxValue])
	c.remove(full, nil)
	c.insert(full, pattern, client.ErrTooLarge)
	c.miss(full)
	c.insert(append(full, 'k'), pattern[:h.MaxValue], client.ErrTooLarge)
	c.miss(full)
}

// contractMany has so many keys that buckets overflow and fingerprints collide.
func contractMany(c *script) {
	const n = 3000
	key := func(i int) []byte { return fmt.Appendf(nil, "user%07d", i*7919) }
	for i := range n {
		c.insert(key(i), key(i*2), nil)
	}
	for i := range n {
		switch i % 3 {
		case 0:
			c.update(key(i), key(i*3), nil)
		case 1:
			c.remove(key(i), nil)
		}
	}
	for i := range n {
		switch i % 3 {
		case 0:
			c.get(key(i), key(i*3))
		case 1:
			c.miss(key(i))
		case 2:
			c.get(key(i), key(i*2))
		}
		c.miss(key(n + i))
	}
}

// contractWorkers runs one worker after another, and two at a time: the answers must not depend on
// what a worker has cached.
func (h *Harness) contractWorkers() error {
	f, end, err := h.fresh(2)
	if err != nil {
		return err
	}
	defer end()
	key := []byte("key")
	var c script
	for i := range 3 {
		one, err := h.worker(f, "one")
		if err != nil {
			return err
		}
		two, err := h.worker(f, "two")
		if err != nil {
			return err
		}
		value := func(n int) []byte { return fmt.Appendf(nil, "%d.%d", i, n) }
		a, b := &script{s: one}, &script{s: two}
		if i > 0 {
			b.get(key, fmt.Appendf(nil, "%d.3", i-1))
			a.remove(key, nil)
		}
		b.miss(key)
		a.insert(key, value(0), nil)
		b.get(key, value(0))
		a.update(key, value(1), nil)
		b.get(key, value(1))
		b.update(key, value(2), nil)
		a.get(key, value(2))
		b.remove(key, nil)
		a.miss(key)
		a.update(key, value(2), client.ErrNotFound)
		b.insert(key, value(3), nil)
		a.insert(key, value(4), client.ErrExists)
		a.get(key, value(3))
		if err := errors.Join(a.err, b.err, one.Close(), two.Close()); err != nil {
			c.say("workers: round %d: %w", i, err)
		}
	}
	if c.err != nil {
		return c.err
	}
	return h.sound(f, false)
}
