package client

// Fill says how full one part of a pool is.
type Fill struct {
	// The name of the part, such as "index slots".
	Of string
	// If Sampled, these count only what was examined.
	Used, All uint64
	// Only a sample was examined, so that it is cheap in large pools.
	Sampled bool
}

// Add adds counts of a piece of the part.
func (f *Fill) Add(used, all uint64) { f.Used, f.All = f.Used+used, f.All+all }

// Span is the range of numbers from From to End-1.
type Span struct{ From, End uint64 }

// Sample returns spans of the numbers below total. They are evenly spread, have at most run numbers
// each, and about most numbers together. No span crosses a multiple of per, which separates the
// items of two nodes, for example. whole reports whether the spans cover all numbers. A span never
// overlaps the next: the step between their beginnings is run at least. run and per are not 0.
func Sample(total, most, run, per uint64) (spans []Span, whole bool) {
	step := run
	if whole = total <= most; !whole {
		step = total / max(most/run, 1)
	}
	for at := uint64(0); at < total; at += step {
		for from, end := at, min(at+run, total); from < end; {
			next := min(end, (from/per+1)*per)
			spans = append(spans, Span{from, next})
			from = next
		}
	}
	return spans, whole
}
