// Package recording keeps samples of a pool in a file, for replays and plots.
//
// A recording (.fkr) is gzip of lines of JSON: a Header, then one telemetry.Sample a line. `zcat
// run.fkr | jq` reads it, too. Each sample is flushed, so that all of them but one half written are
// there after the process that records was killed. The file is a sequence of gzip members of a few
// samples each, at which a Reader can begin.
package recording

// Version is the version of the recordings that this package writes. Readers refuse newer ones; a
// field that is added does not change it.
const Version = 1

// A Header is the first line of a recording.
type Header struct {
	Version int    `json:"farkv_recording"`
	By      string `json:"by"` // what made it, such as "farkv monitor"
}

// The bounds of what a Reader takes and a Writer makes.
const (
	perMember = 64      // samples of a gzip member: what is read again to reach one of them
	maxLine   = 8 << 20 // bytes of a sample
	maxCount  = 1 << 22 // samples: 48 days of one a second
	maxEvents = 1 << 16 // those beyond are dropped
	maxText   = 1 << 10 // bytes of a name or a message; what is longer is cut
	maxNodes  = 1 << 10
	maxTold   = 256 // processes of a sample: their histograms are large
	maxOthers = 1 << 14
)
