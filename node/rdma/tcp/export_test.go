package tcp

// MaxLease is the longest lease that a pool can have.
const MaxLease = maxLease

// Process is the name by which nodes know the fabric.
func (f *Fabric) Process() string { return f.process }

// Expelled tells whether the node knows that it was.
func (n *Node) Expelled() bool { p := n.pool.Load(); return p != nil && p.expelled.Load() }
