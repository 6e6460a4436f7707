package shm

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
)

// configWord is the last tenure that began, in the upper half, and the configuration's version.
// Version v is the half v%2 of the configuration's memory: the next one is written to the other
// half, and then the word is replaced. So a crash leaves the old version whole, or the new one.
// Writers hold the lock of identity 0, which is no client's, and which the kernel drops when the
// process dies: a writer that is slow does not write to a half that is in use by then. The lock's
// byte is at the place of a slot 0, which is in the unused end of the header: Remove does not
// look at it. The version has 32 bits, which no pool uses up.
//
// A swap, under the lock:
//
//	the other half   content, and then length: no reader uses it, since the word does not name it
//	the word         a CAS to the next version: from here on readers use that half
type configWord uint64

const tenureShift = 32

func (w configWord) tenure() uint64  { return uint64(w >> tenureShift) }
func (w configWord) version() uint64 { return uint64(uint32(w)) }

// next is w with the next version. The tenure stays.
func (w configWord) next() configWord { return w&^(1<<tenureShift-1) | configWord(uint32(w)+1) }

func (h *header) configWord() configWord { return configWord(atomic.LoadUint64(&h.config)) }

// half returns where a version of the configuration lies, and its length. n points to the length
// of what is there, in bytes. It is the file's word: readers bound it.
func (h *header) half(g Geometry, version uint64) (p unsafe.Pointer, n *uint64) {
	i := version % 2
	return unsafe.Add(unsafe.Pointer(h), g.config()+i*rdma.MaxConfig), &h.configBytes[i]
}

// Config returns the store's configuration. It may wrap rdma.ErrClosed, ErrTruncated or
// rdma.ErrFull, as all that touches the mapping may: see fault.
func (f *Fabric) Config() (c rdma.Config, err error) {
	release, err := f.use()
	if err != nil {
		return c, err
	}
	defer release()
	defer f.guard(&err)()
	return f.head.loadConfig(f.g), nil
}

// It takes no lock. The half that it copies is written to again only when the next version is in
// place. So the copy is whole if the version is still the same behind it.
func (h *header) loadConfig(g Geometry) rdma.Config {
	buf := make([]byte, rdma.MaxConfig)
	for { // ends: each turn but the last sees two swaps
		// The half is that of the version which this word names, read before its length and its
		// content.
		w := h.configWord()
		if w.version() == 0 {
			return rdma.Config{}
		}
		p, n := h.half(g, w.version())
		data := buf[:min(atomic.LoadUint64(n), rdma.MaxConfig)] // another user may have written any length
		memcopy.Load(data, p)
		var order uint64
		// The second look at the word stays behind the copy.
		memcopy.Next(&order)
		if h.configWord().version() == w.version() {
			return rdma.Config{Version: w.version(), Data: bytes.Clone(data)}
		}
	}
}

// SwapConfig replaces the store's configuration. A process that was stopped in the midst of it
// keeps others from replacing it: after 10 s the error wraps rdma.ErrTimeout. The version is that
// which r's holder has read: false says that another one is in place. The error wraps
// rdma.ErrStale when the tenure is not the last that began, and rdma.ErrMessageSize when data is
// too long.
func (f *Fabric) SwapConfig(r rdma.Role, version uint64, data []byte) (ok bool, err error) {
	err = rdma.CheckConfig(data)
	if err == nil {
		ok, err = f.swapConfig(r.Epoch, version, data)
	}
	if err != nil {
		return false, fmt.Errorf("replace version %d of the configuration of %s as master of epoch %d: %w", version,
			f.name, r.Epoch, err)
	}
	return ok, nil
}

// The lock is for two swaps of one tenure, and for one of a tenure that is over: without it that
// one could write to a half while the next tenure does. The CAS is from the word with tenure and
// version: a tenure that began since makes it fail. A crash before it leaves the old version, and a
// half that the next swap writes anew.
func (f *Fabric) swapConfig(tenure, version uint64, data []byte) (_ bool, err error) {
	release, err := f.use()
	if err != nil {
		return false, err
	}
	defer release()
	if err := f.lockConfig(); err != nil {
		return false, err
	}
	defer f.lives.drop(0)
	defer f.guard(&err)()
	w := f.head.configWord()
	if w.tenure() == tenure && w.version() != version {
		return false, nil
	}
	if w.tenure() == tenure && tenure != 0 {
		// Content and length are in place before the word names them. A reader that still copies
		// the version before this one from here finds that another one is in place, behind its
		// copy.
		p, n := f.head.half(f.g, version+1)
		memcopy.Store(p, data)
		atomic.StoreUint64(n, uint64(len(data)))
		if atomic.CompareAndSwapUint64(&f.head.config, uint64(w), uint64(w.next())) {
			return true, nil
		}
	}
	return false, fmt.Errorf("the tenure of epoch %d has begun: %w", f.head.configWord().tenure(), rdma.ErrStale)
}

// lockConfig takes the lock under which the configuration is replaced. It looks every configPace,
// for patience at most, and then fails with rdma.ErrTimeout. The caller gives it back by
// lives.drop(0); so does the kernel when the process dies.
func (f *Fabric) lockConfig() error {
	for until := now() + patience; ; {
		ok, err := f.lives.take(0)
		switch {
		case ok || err != nil:
			return err
		case now() >= until:
			return fmt.Errorf("another process is about it: %w", rdma.ErrTimeout)
		}
		time.Sleep(configPace)
	}
}

// claimConfig has no tenure before that one replace the configuration any more. It is called
// before a tenure is told that it has begun: see draw. It ends: each turn but the last sees a
// swap, or a later tenure. The version stays. A crash ahead of it leaves a tenure that was never
// told of.
func (h *header) claimConfig(tenure uint64) {
	for w := h.configWord(); w.tenure() < tenure; w = h.configWord() {
		atomic.CompareAndSwapUint64(&h.config, uint64(w), tenure<<tenureShift|w.version())
	}
}

// configPace is the pause between two looks of a wait for a configuration, or for the right to
// write one.
const configPace = time.Millisecond

// AwaitConfig waits for another configuration. It looks every configPace. After the given time
// the error wraps rdma.ErrTimeout; Close of the fabric ends it with rdma.ErrClosed.
func (f *Fabric) AwaitConfig(version uint64, within time.Duration) (c rdma.Config, err error) {
	for until := now() + within; ; {
		if c, err = f.configUnless(version); err != nil || c.Version != version {
			return c, err
		}
		if now() >= until {
			return rdma.Config{}, fmt.Errorf("wait for a configuration of %s behind version %d: %w", f.name, version,
				rdma.ErrTimeout)
		}
		select {
		case <-f.stop:
		case <-time.After(configPace):
		}
	}
}

// configUnless returns the configuration, of which only the version if it is that. So a look that
// finds nothing new copies nothing.
func (f *Fabric) configUnless(version uint64) (c rdma.Config, err error) {
	release, err := f.use()
	if err != nil {
		return c, err
	}
	defer release()
	defer f.guard(&err)()
	if f.head.configWord().version() == version {
		return rdma.Config{Version: version}, nil
	}
	return f.head.loadConfig(f.g), nil
}

// use keeps the pool mapped until release is called. An AwaitConfig of another goroutine may be
// under way when Close is called: the last of the two unmaps. The error wraps rdma.ErrClosed.
func (f *Fabric) use() (release func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing.Load() {
		return nil, fmt.Errorf("use %s: %w", f.name, rdma.ErrClosed)
	}
	f.users++
	return func() { _ = f.drop() }, nil // fails only when the last use ends so, behind Close
}
