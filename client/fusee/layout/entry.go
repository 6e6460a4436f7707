package layout

import "github.com/farkv/farkv/node"

// Recovery passes the blocks of a dead client on as unclean, without a look at what is in them.
// An unclean block is one that was left, with a bit more in its class, so that no client adopts
// it. Its objects may be neither marked nor pointed at. What the dead client had replaced and not
// freed lies in blocks of others, and only the logs in this block tell. Both are freed before an
// object of the block is used again: the master cleans such blocks, piece by piece, when nothing
// else is to be done (Sweep), and passes them on once more.
//
// Live clients read, replace and free the pairs of an unclean block as those of any other.
//
// What a crash leaves: a block that is unclean, of which some objects are marked, and which is
// cleaned from its beginning.
const Unclean = 0x40

// IsUnclean reports whether a block waits to be cleaned. The class of vacant blocks has the bit,
// too.
func IsUnclean(e node.Entry) bool {
	return e.Owner() == node.Left && !IsVacant(e) && e.Class()&Unclean != 0
}

// EntryClass returns the class of a block's objects, clean or not; vacant when it has none.
func EntryClass(e node.Entry) int {
	if IsVacant(e) {
		return Vacant
	}
	return e.Class() &^ Unclean
}

// Vacant is the class of a block that has no objects. Its owner is node.Left. All of it behind
// the bitmap is zero but the head of the first object, which is free.
const Vacant = 0xff

// IsVacant reports whether a block waits to be carved.
func IsVacant(e node.Entry) bool { return e.Owner() == node.Left && e.Class() == Vacant }
