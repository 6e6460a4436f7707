package stores

import (
	"fmt"
	"strings"
)

// Taking lists the stores with a format that takes a key and a value of pair bytes together. It
// leaves baselines out.
func Taking(pair int) (names []string) {
	for _, k := range Kinds() {
		if !k.Baseline && pair <= k.MaxPair {
			names = append(names, k.Name)
		}
	}
	return names
}

// TooLarge says what the user of a pool of this store can do when a key and a value of so many
// bytes together are too large for it.
func (k *Kind) TooLarge(pair int) string {
	if k.MaxPair == 0 || pair <= k.MaxPair {
		return fmt.Sprintf("split the value, or make a pool with 'farkv up --store %s --pair-bytes %d', or more",
			k.Name, pair)
	}
	others := Taking(pair)
	if len(others) == 0 {
		return "split the value: " + k.limit(pair)
	}
	return fmt.Sprintf("%s: split the value, or make a pool for it, such as with 'farkv up --store %s --pair-bytes %d'",
		k.limit(pair), example(others), pair)
}

// KeyTooLarge says what the user of a pool of this store can do when a key of so many bytes is
// longer than the pool takes.
func (k *Kind) KeyTooLarge(key int) string {
	o := k.Option(keyBytes)
	if o == nil || key > int(o.Max) {
		limit := k.MaxPair
		if o != nil {
			limit = int(o.Max)
		}
		return fmt.Sprintf("choose a shorter key: %s's format takes keys of up to %d bytes", k.Name, limit)
	}
	return fmt.Sprintf("choose a shorter key, or make a pool with 'farkv up --store %s %s'", k.Name,
		k.Flag(keyBytes, key))
}

// limit names the limit of the store's format, and the stores that take a larger pair.
func (k *Kind) limit(pair int) string {
	limit := fmt.Sprintf("%s's format takes %d bytes, key and value together", k.Name, k.MaxPair)
	if others := Taking(pair); len(others) > 0 {
		return fmt.Sprintf("%s; %s would do", limit, orList(others))
	}
	return fmt.Sprintf("%s, and no store takes %d", limit, pair)
}

// example returns the first of the names that is a paper's own store and not a variant; if there is
// none, the first name.
func example(names []string) string {
	for _, name := range names {
		if !strings.Contains(name, "-") {
			return name
		}
	}
	return names[0]
}

func orList(names []string) string  { return enumerate(names, " or ") }
func andList(names []string) string { return enumerate(names, " and ") }

// enumerate writes names with commas between, and a word before the last.
func enumerate(names []string, word string) string {
	last := len(names) - 1
	if last <= 0 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + word + names[last]
}
