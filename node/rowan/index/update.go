package index

// Relation is what an entry that the index names is to a given one.
type Relation uint8

// The relations. Entries of one key are ordered by (term, version).
const (
	OtherKey Relation = iota // of another key
	Older                    // of the same key, and older
	AsNew                    // of the same key, and as new or newer
)

// Update makes the index name the entry at an address, of a key with the hash, unless it names one
// of the key that is as new (section 5.3: conditional update). It reports whether it did, and the
// address that was named before; 0: none was. If it did not, what the index names may be that entry
// itself, which is as new as itself.
//
// The function reads the entry at an address, which may wait, and compares it with the given one;
// an error of it ends the update, which has changed nothing. It is called again for what other
// tasks changed meanwhile.
func (x *Index) Update(hash, at uint64, compare func(named uint64) (Relation, error)) (
	old uint64, updated bool, err error,
) {
	var room [4]uint64
	for { // once more for each change that another task made to an item of the tag
		seen := x.Lookup(hash, room[:0])
		relation := OtherKey
		for i := 0; i < len(seen) && relation == OtherKey; i++ {
			old = seen[i]
			if relation, err = compare(old); err != nil {
				return 0, false, err
			}
		}
		switch {
		case relation == AsNew:
			return old, false, nil
		case relation == Older && x.Replace(hash, old, at):
			return old, true, nil
		case relation == OtherKey && x.Insert(hash, at, seen):
			return 0, true, nil
		}
	}
}
