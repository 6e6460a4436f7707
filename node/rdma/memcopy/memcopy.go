package memcopy

import (
	"sync/atomic"
	"unsafe"
)

// The copies here move aligned words of the pool in ascending order, each with one load or store,
// and touch no byte outside their range: a copy that rewrote a neighbour could undo its CAS. The
// compiler keeps their order, because each load stands between two stores. Pointers are built from
// a base and an index, so that none ever points past the end of a buffer.

// Wide is from how many bytes on touch saves more than it costs.
const Wide = 256

// Touch reads a word of each cache line of n bytes at src, so that the misses of a long copy
// overlap: its own loads and stores would fill the processor's window after a few lines. The sum
// keeps the loads alive.
func Touch(src unsafe.Pointer, n int) (sum uint64) {
	p := unsafe.Pointer(uintptr(src) &^ 7)
	for i := 0; i < n; i += 64 {
		sum += *(*uint64)(unsafe.Add(p, i))
	}
	return sum
}

// Load copies pool memory at src into dst.
func Load(dst []byte, src unsafe.Pointer) {
	move(unsafe.Pointer(unsafe.SliceData(dst)), src, uintptr(len(dst)), -uintptr(src)&7)
}

// Store copies src into pool memory at dst.
func Store(dst unsafe.Pointer, src []byte) {
	move(dst, unsafe.Pointer(unsafe.SliceData(src)), uintptr(len(src)), -uintptr(dst)&7)
}

// move copies n bytes, of which so many lie ahead of the first whole word of the pool.
func move(dst, src unsafe.Pointer, n, ahead uintptr) {
	i := min(ahead, n)
	moveBytes(dst, src, 0, i)
	for ; i+64 <= n; i += 64 {
		t, s := (*[8]uint64)(unsafe.Add(dst, i)), (*[8]uint64)(unsafe.Add(src, i))
		t[0] = s[0]
		t[1] = s[1]
		t[2] = s[2]
		t[3] = s[3]
		t[4] = s[4]
		t[5] = s[5]
		t[6] = s[6]
		t[7] = s[7]
	}
	for ; i+8 <= n; i += 8 {
		*(*uint64)(unsafe.Add(dst, i)) = *(*uint64)(unsafe.Add(src, i))
	}
	moveBytes(dst, src, i, n)
}

// moveBytes copies the bytes from i to n, which lie in one word.
func moveBytes(dst, src unsafe.Pointer, i, n uintptr) {
	for ; i < n; i++ {
		*(*byte)(unsafe.Add(dst, i)) = *(*byte)(unsafe.Add(src, i))
	}
}

// CompareSwap returns the word before. The loop ends: each turn means that the word was changed
// twice meanwhile.
func CompareSwap(p *uint64, expect, value uint64) uint64 {
	for {
		if atomic.CompareAndSwapUint64(p, expect, value) {
			return expect
		}
		if old := atomic.LoadUint64(p); old != expect {
			return old
		}
	}
}

// MaskedCompareSwap compares the bits of compare and replaces those of swap; it returns the word
// before.
func MaskedCompareSwap(p *uint64, expect, compare, value, swap uint64) uint64 {
	for {
		old := atomic.LoadUint64(p)
		if (old^expect)&compare != 0 || atomic.CompareAndSwapUint64(p, old, old&^swap|value&swap) {
			return old
		}
	}
}

// LoadWord, CompareSwap and FetchAdd are the processor's own access to a word that verbs change,
// too.
func LoadWord(p *uint64) uint64 { return atomic.LoadUint64(p) }

// FetchAdd returns the word before.
func FetchAdd(p *uint64, n uint64) uint64 { return atomic.AddUint64(p, n) - n }
