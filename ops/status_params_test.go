package ops

import (
	"encoding/json"
	"fmt"
	"testing"
)

// Parameters are rows of names as people read them, those within others too.
func TestParameters(t *testing.T) {
	got := parameters(json.RawMessage(
		`{"values": {"each": 1500, "segments": 4}, "timeout": 2000000000, "pair_bytes": 1024, ` +
			`"apart": true, "f": 2.3}`))
	want := "[[apart true] [f 2.3] [pair bytes 1,024] [timeout 2s] [values each 1,500] [values segments 4]]"
	if fmt.Sprint(got) != want {
		t.Errorf("%v, not %s", got, want)
	}
	if rest := withoutSecret(json.RawMessage(`{"secret": "5", "f": 2.3}`)); string(rest) != `{"f":2.3}` {
		t.Errorf("without the secret there is %s", rest)
	}
	if rest := withoutSecret(json.RawMessage(`{"f": 2.3, "a": 1}`)); string(rest) != `{"f": 2.3, "a": 1}` {
		t.Errorf("without a secret there is %s", rest)
	}
	if rows := parameters(json.RawMessage(`[1]`)); rows != nil {
		t.Errorf("a list makes %v", rows)
	}
}
