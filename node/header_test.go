package node

import (
	"bytes"
	"testing"
)

// FuzzHeader: whatever lies at the front of a node, reading it gives what was written there, or an
// error.
func FuzzHeader(f *testing.F) {
	p := make([]byte, HeaderBytes)
	if err := (Header{Store: "fusee", Version: 1, Params: []byte("{}"), Nodes: 3,
		Size: 1 << 20}).encode(p); err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := decodeHeader(p)
		if err != nil {
			return
		}
		again := make([]byte, HeaderBytes)
		if err := h.encode(again); err != nil || !bytes.Equal(again[:headerFixed], p[:headerFixed]) {
			t.Fatalf("%+v: %v", h, err)
		}
	})
}
