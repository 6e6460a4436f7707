package ops

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/version"
)

// The build names what it speaks, and the format of every store.
func TestBuild(t *testing.T) {
	b := ThisBuild("prog")
	if b.Wire != version.Wire || b.Control != version.Control || b.Commit == "" ||
		len(b.Formats) != len(stores.Names()) {
		t.Errorf("%+v", b)
	}
	var text strings.Builder
	b.Print(&text)
	for _, name := range stores.Names() {
		if b.Formats[name] == 0 || !strings.Contains(text.String(), "format of "+name+" ") {
			t.Errorf("%s: version %d in %s", name, b.Formats[name], text.String())
		}
	}
	all, err := json.Marshal(b)
	if err != nil || !strings.Contains(string(all), `"fusee":`) {
		t.Errorf("%s, %v", all, err)
	}
}
