package pmem

import "time"

// unit is what requests and reads and writes of media are counted in, in bytes.
const unit = 64

// Rate is what a module did between two readings, in bytes a second.
type Rate struct {
	ID                        string
	MediaRead, MediaWritten   float64
	RequestRead, RequestWrote float64
	// DLWA is the device-level write amplification: bytes that were written to the media, by bytes
	// that were asked for; 0: nothing was. At idle a module writes for itself, so that it is large
	// and means little.
	DLWA float64
	// Problem says why there are no figures; "": there are.
	Problem string
}

// Rates compares two readings. The rate of a module that is in only one of them, or that has lower
// counters in the later one, has a Problem.
func Rates(before, after []DIMM, took time.Duration) (rates []Rate) {
	old := map[string]DIMM{}
	for _, d := range before {
		old[d.ID] = d
	}
	for _, d := range after {
		b, known := old[d.ID]
		delete(old, d.ID)
		rates = append(rates, rate(b, d, known, took))
	}
	for _, d := range before {
		if _, left := old[d.ID]; left {
			rates = append(rates, Rate{ID: d.ID, Problem: "the module is gone"})
		}
	}
	return rates
}

func rate(b, d DIMM, known bool, took time.Duration) Rate {
	r := Rate{ID: d.ID}
	switch {
	case !known:
		r.Problem = "the module is new"
		return r
	case took <= 0:
		r.Problem = "no time has passed"
		return r
	case d.MediaReads < b.MediaReads, d.MediaWrites < b.MediaWrites,
		d.ReadRequests < b.ReadRequests, d.WriteRequests < b.WriteRequests:
		r.Problem = "its counters were reset"
		return r
	}
	per := func(before, after uint64) float64 { return float64(after-before) * unit / took.Seconds() }
	r.MediaRead, r.MediaWritten = per(b.MediaReads, d.MediaReads), per(b.MediaWrites, d.MediaWrites)
	r.RequestRead, r.RequestWrote = per(b.ReadRequests, d.ReadRequests), per(b.WriteRequests, d.WriteRequests)
	if r.RequestWrote > 0 {
		r.DLWA = r.MediaWritten / r.RequestWrote
	}
	return r
}
