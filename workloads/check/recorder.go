package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Recorder is a client.Store that notes every operation of the Store below it. Like any Store it
// belongs to one worker. History may be called once the worker is done, or dead.
type Recorder struct {
	store  client.Store
	now    func() time.Duration
	worker int
	ops    History
	found  History // by scans
	log    *json.Encoder
	logErr error
}

var _ client.Store = (*Recorder)(nil)

// NewRecorder records what a worker does on s, by the clock now, which all workers of a history
// share (see rdma.Env.Now). The worker's number is unique in the history.
func NewRecorder(worker int, s client.Store, now func() time.Duration) *Recorder {
	return &Recorder{store: s, now: now, worker: worker}
}

// LogTo makes the recorder also write each operation to w, a line when it is called and a line when
// it returns, so that the history of a process outlives it: Decode reads them. A failure to write
// ends the next operation.
func (r *Recorder) LogTo(w io.Writer) { r.log = json.NewEncoder(w) }

// History returns what was recorded so far.
func (r *Recorder) History() History { return r.ops }

// Get records a Get.
func (r *Recorder) Get(key []byte) ([]byte, error) {
	if err := r.begin(Get, key, 0); err != nil {
		return nil, err
	}
	v, err := r.store.Get(key)
	if err == nil {
		r.ops[len(r.ops)-1].Value = Identify(v)
	}
	r.end(err)
	return v, err
}

// Insert records an Insert.
func (r *Recorder) Insert(key, value []byte) error {
	return r.change(Insert, key, value)
}

// Update records an Update.
func (r *Recorder) Update(key, value []byte) error {
	return r.change(Update, key, value)
}

// Delete records a Delete.
func (r *Recorder) Delete(key []byte) error {
	return r.change(Delete, key, nil)
}

func (r *Recorder) change(k Kind, key, value []byte) error {
	var v Value
	if k != Delete {
		v = Identify(value)
	}
	if err := r.begin(k, key, v); err != nil {
		return err
	}
	return r.end(k.Do(r.store, key, value))
}

// ErrScan is wrapped by what Scan returns of a scan that no store may answer.
var ErrScan = errors.New("no such scan")

// Scan records a scan of up to n pairs from a key on, of a store that is a client.Scanner: keys, in
// order, are all that the history has. What it answers is in Found, as a Get of each key in its
// range: each has to be right at some moment of the scan. So it has nothing that was not there in
// its time, and all that was there throughout.
//
// The error is the store's, or wraps ErrScan: pairs out of order, or too many, or of other keys.
func (r *Recorder) Scan(keys []string, from string, n int) error {
	if err := r.begin(Scan, []byte(from), 0); err != nil {
		return err
	}
	got, last := map[string]Value{}, ""
	var wrong error
	err := r.store.(client.Scanner).Scan([]byte(from), n, func(key, value []byte) bool {
		k := string(key)
		if _, known := slices.BinarySearch(keys, k); !known || k < from || len(got) > 0 && k <= last || len(got) >= n {
			wrong = fmt.Errorf("%d pairs from %q have %q behind %q: %w", n, from, k, last, ErrScan)
		}
		got[k], last = Identify(value), k
		return true
	})
	if err == nil {
		err = wrong
	}
	r.end(err)
	if err != nil || n <= 0 {
		return err
	}
	op := r.ops[len(r.ops)-1]
	for _, k := range keys {
		if k < from || len(got) == n && k > last {
			continue
		}
		op.Kind, op.Key, op.Value, op.Answer = Get, []byte(k), 0, NotFound
		if v, ok := got[k]; ok {
			op.Value, op.Answer = v, OK
		}
		r.found = append(r.found, op)
	}
	return nil
}

// Found returns what scans have recorded, as Gets.
func (r *Recorder) Found() History { return r.found }

// Close closes the Store.
func (r *Recorder) Close() error { return r.store.Close() }

// begin notes the call before it is made: a worker that dies inside leaves it pending.
func (r *Recorder) begin(k Kind, key []byte, v Value) error {
	if r.logErr != nil {
		return fmt.Errorf("record history: %w", r.logErr)
	}
	r.ops = append(r.ops, Op{
		Worker: r.worker, Seq: len(r.ops), Kind: k, Key: bytes.Clone(key), Value: v,
		Answer: Pending, Return: Never,
	})
	op := &r.ops[len(r.ops)-1]
	op.Call = r.now()
	r.write(op)
	return r.logErr
}

func (r *Recorder) end(err error) error {
	op := &r.ops[len(r.ops)-1]
	op.Return = r.now()
	op.Answer = classify(err)
	if op.Answer >= Uncertain {
		op.Err = err.Error()
	}
	r.write(op)
	return err
}

func (r *Recorder) write(op *Op) {
	if r.log != nil && r.logErr == nil {
		r.logErr = r.log.Encode(op)
	}
}

// classify turns an error into an answer. What may hide an effect comes first: an error can wrap
// several.
func classify(err error) Answer {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, client.ErrUncertain), errors.Is(err, rdma.ErrNodeDown):
		return Uncertain
	case errors.Is(err, client.ErrNotFound):
		return NotFound
	case errors.Is(err, client.ErrExists):
		return Exists
	case errors.Is(err, client.ErrTooLarge), errors.Is(err, client.ErrFull):
		return Refused
	case errors.Is(err, rdma.ErrTimeout):
		return TimedOut
	}
	return Failed
}
