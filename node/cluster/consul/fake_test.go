package consul

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// fake is a Consul agent's KV in this process. A test chooses its failures. Without failures it
// behaves like the real agent: contract_test.go runs over both.
type fake struct {
	*httptest.Server

	mu      sync.Mutex
	index   uint64
	pairs   map[string]api.KVPair
	changed chan struct{} // closed at the next change
	queries int

	// fail is asked before a request is executed; nil: nothing fails.
	fail func(*http.Request) failure
	// past is taken off the index of every answer, as by a Consul that was set back.
	past uint64
}

// failure is what becomes of a request.
type failure int

const (
	none    failure = iota
	refuse          // 500, not executed
	lose            // executed, and the answer is 500
	late            // executed after the caller gave up
	forbid          // 403
	crowd           // 429
	unindex         // executed, and the answer has no index
	foreign         // 404, as of a web server that knows nothing of Consul
)

// newFake starts a fake and connects to it.
func newFake(t testing.TB) (*fake, *Agent) {
	t.Helper()
	f := &fake{index: 10, pairs: map[string]api.KVPair{}, changed: make(chan struct{})}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Server.Close)
	return f, dial(t, f.Listener.Addr().String())
}

// dial connects to an agent for the time of a test.
func dial(t testing.TB, address string) *Agent {
	t.Helper()
	a, err := Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queries++
	what := none
	if f.fail != nil {
		what = f.fail(r)
	}
	switch what {
	case refuse:
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
		return
	case forbid:
		http.Error(w, "Permission denied: token lacks permission 'key:read'", http.StatusForbidden)
		return
	case crowd:
		http.Error(w, "Your IP is issuing too many concurrent connections", http.StatusTooManyRequests)
		return
	case foreign:
		http.NotFound(w, r)
		return
	case lose:
		f.execute(httptest.NewRecorder(), r)
		http.Error(w, "rpc error: leadership lost while committing log", http.StatusInternalServerError)
		return
	case late:
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		f.mu.Unlock()
		<-r.Context().Done()
		f.mu.Lock()
	case unindex:
		rec := httptest.NewRecorder()
		f.execute(rec, r)
		w.WriteHeader(rec.Code)
		w.Write(rec.Body.Bytes())
		return
	}
	f.execute(w, r)
}

// execute answers one request. f.mu is held, and left while a blocking query waits.
func (f *fake) execute(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, "/v1/kv/")
	switch q := r.URL.Query(); {
	case r.URL.Path == "/v1/txn":
		f.transact(w, r)
	case r.Method == http.MethodPut:
		value, _ := io.ReadAll(r.Body)
		cas, _ := strconv.ParseUint(q.Get("cas"), 10, 64)
		flags, _ := strconv.ParseUint(q.Get("flags"), 10, 64)
		json.NewEncoder(w).Encode(f.cas(api.KVPair{Key: key, Value: value, Flags: flags}, cas))
	case q.Has("keys"):
		f.answer(w, f.index, folders(slices.Sorted(maps.Keys(f.pairs)), key, q.Get("separator")))
	case q.Has("recurse"):
		var pairs []api.KVPair
		for _, k := range slices.Backward(slices.Sorted(maps.Keys(f.pairs))) { // the order is no part of the contract
			if strings.HasPrefix(k, key) {
				pairs = append(pairs, f.pairs[k])
			}
		}
		f.answer(w, f.index, pairs)
	default:
		f.get(w, r, key)
	}
}

// answer sends what was found, or 404.
func (f *fake) answer(w http.ResponseWriter, index uint64, found any) {
	w.Header().Set("X-Consul-Index", strconv.FormatUint(index-f.past, 10))
	if list, ok := found.([]api.KVPair); ok && len(list) == 0 {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	json.NewEncoder(w).Encode(found)
}

func (f *fake) get(w http.ResponseWriter, r *http.Request, key string) {
	after, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
	timeout := time.After(wait)
	for after > 0 && f.at(key)-f.past <= after {
		changed := f.changed
		f.mu.Unlock()
		over := false
		select {
		case <-changed:
		case <-timeout:
			over = true
		case <-r.Context().Done():
			over = true
		}
		f.mu.Lock()
		if over {
			break
		}
	}
	var found []api.KVPair
	if p, ok := f.pairs[key]; ok {
		found = append(found, p)
	}
	f.answer(w, f.at(key), found)
}

// at is the index of a key's last change, of which a missing one has none of its own.
func (f *fake) at(key string) uint64 {
	if p, ok := f.pairs[key]; ok {
		return p.ModifyIndex
	}
	return f.index
}

func (f *fake) cas(p api.KVPair, version uint64) bool {
	old, ok := f.pairs[p.Key]
	if old.ModifyIndex != version {
		return false
	}
	if ok && string(old.Value) == string(p.Value) && old.Flags == p.Flags {
		return true // nothing changes, and so the version does not, either
	}
	f.index++
	p.ModifyIndex = f.index
	f.pairs[p.Key] = p
	close(f.changed)
	f.changed = make(chan struct{})
	return true
}

func (f *fake) transact(w http.ResponseWriter, r *http.Request) {
	var ops api.TxnOps
	json.NewDecoder(r.Body).Decode(&ops)
	for _, op := range ops {
		if op.KV.Verb == api.KVCheckIndex && f.pairs[op.KV.Key].ModifyIndex != op.KV.Index {
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, `{"Results":null,"Errors":[{"OpIndex":0,"What":"index mismatch"}]}`)
			return
		}
	}
	for _, op := range ops {
		if op.KV.Verb == api.KVDeleteTree {
			maps.DeleteFunc(f.pairs, func(key string, _ api.KVPair) bool { return strings.HasPrefix(key, op.KV.Key) })
			f.index++
		}
	}
	io.WriteString(w, `{"Results":[],"Errors":null}`)
}

// folders cuts keys that begin so after the next separator.
func folders(keys []string, prefix, separator string) []string {
	cut := []string{}
	for _, k := range keys {
		if rest, ok := strings.CutPrefix(k, prefix); ok {
			if name, _, more := strings.Cut(rest, separator); more {
				k = prefix + name + separator
			}
			cut = append(cut, k)
		}
	}
	return slices.Compact(cut)
}

// set changes how the fake behaves.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func refuseAll(*http.Request) failure { return refuse }
