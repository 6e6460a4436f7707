package telemetry

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// A Reader looks at the processes and events of a pool, again and again. It needs an endpoint that
// may READ: see rdma.Peek. It is not safe for concurrent use.
type Reader struct {
	r     *Region
	lives map[uint64]pulse
	rings map[int]*ring // by node
}

// pulse is what a reader knows of a life.
type pulse struct {
	beat  uint64
	since time.Duration // when the reader saw it first
	alive bool
}

// NewReader returns a reader that has seen nothing yet.
func NewReader(r *Region) *Reader {
	return &Reader{r: r, lives: map[uint64]pulse{}, rings: map[int]*ring{}}
}

// found is a place that a process has.
type found struct {
	node, place int
	life        uint64
}

// Processes returns what the pool's processes published last, sorted by host and process, and how
// many there are beyond those with a record; now is the reader's wall clock.
//
// A process is there as long as it goes on publishing: one that has not for StaleAfter, while the
// reader looked or, at the first look, by the two clocks, is left out. So is a record that is not
// whole. A look at a pool of which some nodes do not answer finds what others have; where none
// answers the error is why.
func (d *Reader) Processes(ep rdma.Endpoint, now time.Time) (all []Process, more int, err error) {
	v, err := ep.Join()
	if err != nil {
		return nil, 0, fmt.Errorf("look at telemetry: %w", err)
	}
	var places []found
	answered, beats := 0, map[uint64]uint64{}
	onEach(ep, attend, StepLook, d.r.serving(&v), func(b *rdma.Batch, n int) { b.Read(d.r.place(n, 0), tableBytes) },
		func(b *rdma.Batch, n int) {
			answered++
			for i := range tableBytes / placeBytes {
				if p := placeAt(b.Op(0).Buf, i); p.claim != 0 {
					places = append(places, found{n, i, p.claim})
					beats[p.claim] = max(beats[p.claim], p.beat)
				}
			}
		}, func(_ int, wrong error) { err = wrong })
	if answered == 0 {
		return nil, 0, fmt.Errorf("look at telemetry: %w", cmp.Or(err, ErrNowhere))
	}
	d.watch(ep.Now(), now, beats)
	places = slices.DeleteFunc(places, func(f found) bool { return !d.lives[f.life].alive })
	records := d.records(ep, places)
	counted := map[uint64]bool{}
	for _, f := range places {
		h, ok := records[f.life]
		if counted[f.life] {
			continue
		}
		counted[f.life] = true
		if !ok {
			more++
			continue
		}
		if p, err := decodeProcess(h.content); err == nil {
			p.Life = f.life
			all = append(all, *p)
		}
	}
	slices.SortFunc(all, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Life, b.Life))
	})
	return all, more, nil
}

const tableBytes = places * placeBytes

// watch notes which lives go on.
func (d *Reader) watch(at time.Duration, now time.Time, beats map[uint64]uint64) {
	for life := range d.lives {
		if _, ok := beats[life]; !ok {
			delete(d.lives, life)
		}
	}
	for life, beat := range beats {
		is, known := d.lives[life]
		switch {
		case !known:
			is = pulse{beat, at, now.Sub(time.Unix(0, int64(beat))).Abs() < StaleAfter}
		case is.beat != beat:
			is = pulse{beat, at, true}
		case at-is.since > StaleAfter:
			is.alive = false
		}
		d.lives[life] = is
	}
}

// records reads the records of lives, each wherever it is, and returns the newest half that is
// whole.
func (d *Reader) records(ep rdma.Endpoint, places []found) map[uint64]half {
	var nodes []int
	of := map[int][]found{}
	for _, f := range places {
		if f.place < d.r.records {
			if of[f.node] == nil {
				nodes = append(nodes, f.node)
			}
			of[f.node] = append(of[f.node], f)
		}
	}
	records := map[uint64]half{}
	onEach(ep, attend, StepLook, nodes, func(b *rdma.Batch, n int) {
		for _, f := range of[n] {
			b.Read(d.r.record(n, f.place), RecordBytes)
		}
	}, func(b *rdma.Batch, n int) {
		for i, f := range of[n] {
			h, ok := newest(b.Op(i).Buf, f.life)
			if was, has := records[f.life]; ok && (!has || h.seq > was.seq) {
				h.content = slices.Clone(h.content) // the batch's buffer is about to be another's
				records[f.life] = h
			}
		}
	}, nil)
	return records
}
