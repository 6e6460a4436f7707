package stores

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Offer is an option as help texts show it: of all stores that have it.
type Offer struct {
	Option
	// Stores are those that have the option, sorted.
	Stores []string
	// Otherwise is a text with the default of each of these stores.
	Otherwise string
}

// Offers lists the options of all stores, sorted by name. An option with parts is listed once.
func Offers() []Offer {
	byName := map[string]*Offer{}
	for _, k := range Kinds() {
		for _, o := range k.Options {
			if byName[o.Name] == nil {
				byName[o.Name] = &Offer{Option: o}
			}
			byName[o.Name].Stores = append(byName[o.Name].Stores, k.Name)
		}
	}
	var all []Offer
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		o := *byName[name]
		o.Otherwise = perStore(o.Stores, func(k *Kind) string { return k.Option(name).Otherwise() })
		all = append(all, o)
	}
	return all
}

// Of says which stores have the option, such as "of rcuckoo: "; "": all stores.
func (o *Offer) Of() string {
	others := slices.DeleteFunc(Names(), func(name string) bool { return slices.Contains(o.Stores, name) })
	switch {
	case len(others) == 0:
		return ""
	case len(others) < len(o.Stores):
		return "of all stores but " + orList(others) + ": "
	}
	return "of " + strings.Join(o.Stores, ", ") + ": "
}

// DefaultReplicas returns a text with the default number of replicas of each store.
func DefaultReplicas() string {
	return perStore(Names(), func(k *Kind) string { return fmt.Sprint(k.Size(Params{}).DataReplicas) }) +
		"; 1 on one node"
}

// Slotted lists the stores in which every pair has room for exactly Params.PairBytes.
func Slotted() string {
	return andList(slices.DeleteFunc(Names(), func(name string) bool { return !kinds[name].Slots }))
}

// perStore joins what say returns for each store: first the text of most stores, then each other
// text with the stores that it is for.
func perStore(names []string, say func(*Kind) string) string {
	by := map[string][]string{}
	for _, name := range names {
		what := say(kinds[name])
		by[what] = append(by[what], name)
	}
	whats := slices.SortedFunc(maps.Keys(by), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(by[b]), len(by[a])), cmp.Compare(by[a][0], by[b][0]))
	})
	text := whats[0]
	for _, what := range whats[1:] {
		text += fmt.Sprintf("; of %s %s", strings.Join(by[what], ", "), what)
	}
	return text
}

// ExploredText returns, by option, the value that searches for faults use instead of the default.
func ExploredText() map[string]string {
	all := map[string]string{}
	for _, k := range Kinds() {
		for _, o := range k.settable() {
			if v, ok := k.Explored[o.Name]; ok {
				all[o.Name] = o.Text(v)
			}
		}
	}
	return all
}
