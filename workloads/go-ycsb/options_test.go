package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/farkv/farkv/client/stores"
)

// Every option of every store is a property that its help explains, and that the command line
// knows.
func TestOptionsAreProperties(t *testing.T) {
	completed := propertyWords()
	for _, name := range stores.Names() {
		kind, err := stores.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		help := strings.Join(strings.Fields(storeHelp(kind)), " ")
		if !strings.Contains(help, strings.Join(kind.Can(), "; ")) {
			t.Errorf("%s can %q: %s", name, kind.Can(), help)
		}
		for _, o := range kind.Options {
			property := "farkv." + strings.ReplaceAll(o.Name, "-", "")
			text := strings.Join(strings.Fields(property+" "+o.Otherwise()), " ")
			if !strings.Contains(help, text) || !strings.Contains(help, o.Help()) {
				t.Errorf("%s: no %q in its help, or not what it is for", name, text)
			}
			if !slices.Contains(knownNames(), property) {
				t.Errorf("%s is unknown", property)
			}
			if !slices.ContainsFunc(completed, func(word string) bool {
				return strings.HasPrefix(word, property+"\t")
			}) {
				t.Errorf("%s is not completed", property)
			}
		}
	}
}
