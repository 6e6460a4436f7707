package shm

// Option shapes how a pool is made, opened or removed.
type Option func(*options)

type options struct{ shared bool }

// Shared is for pools that other users may change. Create makes such a file: each user of the
// machine may use the pool. Open and Remove take what belongs to another user, or can be written by
// one, which they refuse otherwise.
//
// Nothing in such a file is trusted with more than the answers of the pool: sizes are checked
// against the file, a process is signaled only when the kernel says that it holds the client's
// lock, orders to crash (see Step) are neither given nor obeyed, and a file that is truncated under
// its users fails their verbs, see guard. What its users write can still make operations fail,
// answer wrongly, or wait until their timeouts.
func Shared(o *options) { o.shared = true }

func optionsOf(all []Option) (o options) {
	for _, set := range all {
		set(&o)
	}
	return o
}

// scheme is how addresses of the pool begin.
func (o options) scheme() string {
	if o.shared {
		return "shared:"
	}
	return "shm:"
}
