package stores

// Heeds says which Params and Options a store heeds that others do not, with which defaults, and what it is for.
type Heeds struct {
	// CacheBytes is the default of Options.CacheBytes; 0: the store has no cache, or none that can be sized.
	CacheBytes int
	// CacheThreshold is the default of Options.CacheThreshold; 0: the store has none.
	CacheThreshold float64
	// Split reports whether index and data may have different numbers of replicas.
	Split bool
	// Replicas says in words how many replicas there may be.
	Replicas string
	// Baseline reports whether the store is there to measure others against, and not to be recommended.
	Baseline bool
}
