package table

import (
	"testing"

	"pgregory.net/rapid"
)

// TestClasses: a pair's extent has room for it, and is at most twice as large, or of the smallest
// class. The extents of a slab share no byte with each other or with the marks.
func TestClasses(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := small()
		p.KeyBytes = rapid.IntRange(1, maxKeyBytes).Draw(r, "key bytes")
		p.ExtentBytes = rapid.IntRange(p.InlineBytes+1, 20_000).Draw(r, "value bytes")
		p.Classes = rapid.IntRange(1, classesFor(extentBytes(p))).Draw(r, "classes")
		p.SlabExtents = rapid.IntRange(1, 9).Draw(r, "units")
		l := lay(t, p, 1)
		key, value := rapid.IntRange(0, p.KeyBytes).Draw(r, "key"), rapid.IntRange(0, p.ExtentBytes).Draw(r, "value")
		class := l.ClassFor(key + value)
		need := uint64(ExtentHeader + key + value)
		if l.SizeOf(class) < need || class < p.Classes-1 && l.SizeOf(class+1) >= need {
			r.Fatalf("%d bytes are in an extent of %d", need, l.SizeOf(class))
		}
		end := uint64(l.SlabMarks()) * MarkBytes
		for unit := range uint64(p.SlabExtents) {
			for place := range 1 << class {
				u := Ref{Extent: l.ExtentIn(unit, place), Length: value, Stamp: WithClass(1<<16, class)}
				if i, at := l.UnitOf(u.Extent); i != unit || at != place || !l.Names(u, key) ||
					l.Class(u.Stamp) != class {
					r.Fatalf("%+v is in unit %d, place %d", u, i, at)
				}
				if off := l.ExtentOff(u); off < end || off%8 != 0 {
					r.Fatalf("%+v begins at %d, behind what ends at %d", u, off, end)
				}
				end = l.ExtentOff(u) + l.SizeOf(class)
			}
		}
		if end > l.SlabBytes {
			r.Fatalf("a slab of %d bytes has extents up to %d", l.SlabBytes, end)
		}
		if u := (Ref{Extent: l.ExtentIn(0, 1<<class), Length: value,
			Stamp: WithClass(1<<16, class)}); class < p.Classes-1 && l.Names(u, key) {
			r.Fatalf("%+v is named, and a unit has no such place", u)
		}
	})
}
