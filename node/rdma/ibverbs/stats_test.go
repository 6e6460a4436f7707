package ibverbs

import (
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// What a Fabric was told and what its worker has not told yet are all calls into the device, told
// or not.
func TestStats(t *testing.T) {
	f := newPool(t, shape{nodes: 1})
	ep, err := f.Open("worker")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	count := func() (s Stats) {
		own := ep.(*Endpoint).Untold()
		told := f.Stats()
		return Stats{Posts: own.Posts + told.Posts, Polls: own.Polls + told.Polls,
			Requests: own.Requests + told.Requests}
	}
	read := func() {
		b := ep.Batch()
		b.Read(rdma.At(0, 0), 8)
		if err := rdma.Do(ep, b, lease); err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	read() // connects
	before := count()
	for range 3 {
		read()
	}
	after := count()
	if posts, requests := after.Posts-before.Posts, after.Requests-before.Requests; posts != 3 || requests != 3 {
		t.Errorf("3 batches of a READ are %d posts of %d requests", posts, requests)
	}
	if polls := after.Polls - before.Polls; polls < 3 {
		t.Errorf("3 batches took %d looks for completions", polls)
	}
}
