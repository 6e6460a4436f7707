package client

// Fill says how full a part of a pool is.
type Fill struct {
	Of        string // what, such as "index slots"
	Used, All uint64 // of Sampled: of those that were looked at
	Sampled   bool   // a part was looked at that stands for all, so that looking is cheap in large pools
}

// Add counts a part of what f is about.
func (f *Fill) Add(used, all uint64) { f.Used, f.All = f.Used+used, f.All+all }

// Span is the numbers from From to End-1.
type Span struct{ From, End uint64 }

// Sample returns spans of numbers below total, evenly spread, each of run numbers at most, that
// have about most numbers together. No span has numbers on both sides of a multiple of per, such as
// the items of two nodes. whole reports whether these are all numbers.
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
