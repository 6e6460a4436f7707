package btree

import (
	"bytes"
	"slices"
)

// A leaf's entry, between its margins:
//
//	0  bytes of the key
//	1  0: it is free; 1 to Inline+1: bytes of the value, and one; Inline+2: the
//	   value lies beside the leaf
//	2  key
//	   value, or the Ref of what lies beside
const slotHeader = 2

// Inline is how many bytes of a value lie in its entry at most. A longer value
// lies beside the leaf.
const Inline = 8

// beside is the second byte of an entry with a value that lies beside its leaf.
const beside = Inline + 2

// Pair is a key with its value, or with where that lies.
type Pair struct {
	Key []byte
	// Value is a value that lies in the entry.
	Value []byte
	// Beside is where else the value lies; 0: it lies in the entry.
	Beside Ref
}

// Leaf is a node of level 0 that was decoded. It points into the bytes that it
// was decoded from, and changes are made there.
type Leaf struct {
	Header
	f *Format
	p []byte
}

// DecodeLeaf decodes a leaf. It returns false if p is none.
func (f *Format) DecodeLeaf(p []byte) (l Leaf, ok bool) {
	h, ok := f.Decode(p)
	return Leaf{h, f, p}, ok && h.Level == 0
}

// WriteLeaf writes a leaf to p with pairs, of which there are Slots at most.
func (f *Format) WriteLeaf(p []byte, h Header, pairs []Pair) {
	h.Level, h.Leftmost = 0, 0
	f.write(p, &h)
	l := Leaf{h, f, p}
	for i := range pairs {
		l.Set(i, &pairs[i])
	}
}

// Slots returns how many entries a leaf has room for.
func (f *Format) Slots() int { return f.slots }

// slot returns an entry without margins.
func (l *Leaf) slot(i int) []byte {
	return l.p[l.f.entries+i*l.f.slot+l.f.Margin:][:l.f.slot-2*l.f.Margin]
}

// used reports whether an entry has a pair. Entries of arbitrary bytes may be out
// of range, and count as free.
func (l *Leaf) used(e []byte) bool { return e[1] != 0 && e[1] <= beside && int(e[0]) <= l.f.KeyBytes }

// Find returns the entry of a key, or -1 if there is none.
func (l *Leaf) Find(key []byte) int {
	end := slotHeader + len(key)
	for i := range l.f.slots {
		e := l.slot(i)
		if int(e[0]) == len(key) && l.used(e) && bytes.Equal(e[slotHeader:end], key) {
			return i
		}
	}
	return -1
}

// Free returns an entry that is free, or -1 if the leaf is full.
func (l *Leaf) Free() int {
	for i := range l.f.slots {
		if !l.used(l.slot(i)) {
			return i
		}
	}
	return -1
}

// Count returns how many pairs there are.
func (l *Leaf) Count() (n int) {
	for i := range l.f.slots {
		if l.used(l.slot(i)) {
			n++
		}
	}
	return n
}

// Pair returns the pair of an entry that is used. It points into the leaf.
func (l *Leaf) Pair(i int) (p Pair) {
	e := l.slot(i)
	p.Key = e[slotHeader:][:e[0]:e[0]]
	value := e[slotHeader+l.f.KeyBytes:]
	if e[1] == beside {
		p.Beside = Ref(le.Uint64(value))
		return p
	}
	p.Value = value[: e[1]-1 : e[1]-1]
	return p
}

// Set writes a pair to an entry.
func (l *Leaf) Set(i int, p *Pair) {
	e := l.slot(i)
	clear(e)
	e[0] = byte(len(p.Key))
	copy(e[slotHeader:][:l.f.KeyBytes], p.Key)
	value := e[slotHeader+l.f.KeyBytes:]
	if p.Beside != 0 {
		e[1] = beside
		le.PutUint64(value, uint64(p.Beside))
		return
	}
	e[1] = byte(len(p.Value) + 1)
	copy(value[:Inline], p.Value)
}

// Clear makes an entry free.
func (l *Leaf) Clear(i int) { clear(l.slot(i)) }

// Pairs appends all pairs to a list, in the order of their keys. They point into the leaf.
func (l *Leaf) Pairs(to []Pair) []Pair {
	first := len(to)
	for i := range l.f.slots {
		if l.used(l.slot(i)) {
			to = append(to, l.Pair(i))
		}
	}
	slices.SortFunc(to[first:], func(a, b Pair) int { return bytes.Compare(a.Key, b.Key) })
	return to
}

// InsertPair inserts a pair into a list that is in order and does not have its key.
func InsertPair(list []Pair, p Pair) []Pair {
	i, _ := slices.BinarySearchFunc(list, p.Key, func(a Pair, key []byte) int { return bytes.Compare(a.Key, key) })
	return slices.Insert(list, i, p)
}

// HalvePairs returns how many of the pairs of a leaf that is too full, in order,
// stay in it, and the separator: the shortest key that divides them from the
// others. last: the leaf is the last one, and its last pair is the new one. Then
// keys seem to come in order, and all others stay.
func HalvePairs(pairs []Pair, last bool) (stay int, separator []byte) {
	stay = len(pairs) / 2
	if last {
		stay = len(pairs) - 1
	}
	return stay, Separator(pairs[stay-1].Key, pairs[stay].Key)
}

// EncodeValue appends a value that lies beside its leaf: its key, by which a
// reader sees that the value still belongs to it, and the value.
func EncodeValue(to, key, value []byte) []byte {
	to = append(to, kindValue, byte(len(key)))
	to = append(to, key...)
	return append(to, value...)
}

// ValueBytes returns how many bytes a value beside its leaf takes.
func ValueBytes(key, value int) int { return slotHeader + key + value }

// DecodeValue returns the key and the value of p. It returns false if p is no
// such value. They point into p.
func DecodeValue(p []byte) (key, value []byte, ok bool) {
	if len(p) < slotHeader || p[0] != kindValue || len(p) < slotHeader+int(p[1]) {
		return nil, nil, false
	}
	return p[slotHeader:][:p[1]], p[slotHeader+int(p[1]):], true
}

// Copy copies a leaf to p, which has the bytes of a node.
func (l *Leaf) Copy(p []byte) Leaf {
	copy(p, l.p)
	return Leaf{l.Header, l.f, p[:l.f.NodeBytes]}
}
