package table

// A claim list is a client's record of the extents of a class in a shard that it claims next: their
// count, and a ref each, with the stamp that the claim gives. It lands before the claims do. So
// it names every extent that the client has claimed and that no row names yet. If a claim list is
// torn, nothing that it was to name is claimed yet. What the claim list named before was taken by
// then, and the operations that took it were over.
const (
	// ClaimAtOnce is how many extents a claim list has, and so how many a client claims in one
	// trip.
	ClaimAtOnce = 31

	// ClaimRefs is the offset of the refs in a claim list, and claimBytes the size of the claim
	// list of one class.
	ClaimRefs  = 8
	claimBytes = ClaimRefs + ClaimAtOnce*RefBytes
)

// ClaimsBytes is how many bytes all claim lists of a client have: one of each class, and the record
// of units that change their class: see carve.go of package extents. A pool with one class has no
// such record.
func (u *Units) ClaimsBytes() uint64 {
	if u.classes == 1 {
		return claimBytes
	}
	return uint64(u.classes+1) * claimBytes
}

// EachClaims calls f with each claim list of a client, by class. In a pool with several classes the
// last call, with class Classes, has the record of the units that change their class. An error of f
// ends it.
func (u *Units) EachClaims(p []byte, f func(class int, p []byte) error) error {
	for class := 0; len(p) > 0; class, p = class+1, p[claimBytes:] {
		if err := f(class, p[:claimBytes]); err != nil {
			return err
		}
	}
	return nil
}

// ClaimsOf returns the refs in a claim list, but for those that cannot name an extent of the pool:
// a claim list may be torn.
func (u *Units) ClaimsOf(p []byte) (refs []Ref) {
	for i := range min(le.Uint64(p), ClaimAtOnce) {
		if r := DecodeRef(p[ClaimRefs+i*RefBytes:]); u.Names(r, 0) {
			refs = append(refs, r)
		}
	}
	return refs
}
