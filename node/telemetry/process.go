package telemetry

import "slices"

// Add adds what o counts to p: operations, verbs at nodes, calls, and the store's own counters.
func (p *Process) Add(o *Process) {
	for k := range p.Ops {
		p.Ops[k].Add(&o.Ops[k])
	}
	for i := range o.Nodes {
		p.at(o.Nodes[i].Node).Add(&o.Nodes[i])
	}
	p.Calls += o.Calls
	for i, c := range o.Own {
		p.own(i, c.Name).Count += c.Count
	}
}

// at returns the counts of a node, which come in the order in which they were asked for.
func (p *Process) at(node int) *NodeCounts {
	for i := range p.Nodes {
		if p.Nodes[i].Node == node {
			return &p.Nodes[i]
		}
	}
	p.Nodes = append(p.Nodes, NodeCounts{Node: node})
	return &p.Nodes[len(p.Nodes)-1]
}

// own returns a counter, which is the i-th where all that is added is of one store.
func (p *Process) own(i int, name string) *Counter {
	if i >= len(p.Own) || p.Own[i].Name != name {
		i = slices.IndexFunc(p.Own, func(c Counter) bool { return c.Name == name })
	}
	if i < 0 {
		p.Own = append(p.Own, Counter{Name: name})
		i = len(p.Own) - 1
	}
	return &p.Own[i]
}

// Add adds what x counts to o.
func (o *Ops) Add(x *Ops) {
	o.OK += x.OK
	o.Failed += x.Failed
	o.Unknown += x.Unknown
	o.Trips += x.Trips
	if x.Latency == nil || x.Latency.Count() == 0 {
		return
	}
	if o.Latency == nil {
		o.Latency = new(Histogram)
	}
	o.Latency.Merge(x.Latency)
}

// Reset forgets what was counted, but keeps the memory.
func (o *Ops) Reset() {
	h := o.Latency
	if h != nil {
		h.Reset()
	}
	*o = Ops{Latency: h}
}

// Reset forgets what p counts, but keeps the memory.
func (p *Process) Reset() {
	for k := range p.Ops {
		p.Ops[k].Reset()
	}
	for i := range p.Nodes {
		p.Nodes[i] = NodeCounts{Node: p.Nodes[i].Node}
	}
	for i := range p.Own {
		p.Own[i].Count = 0
	}
	p.Calls = 0
}

// Add adds what x counts to n.
func (n *NodeCounts) Add(x *NodeCounts) {
	n.Reads += x.Reads
	n.Writes += x.Writes
	n.Atomics += x.Atomics
	n.Calls += x.Calls
	n.BytesRead += x.BytesRead
	n.BytesWrote += x.BytesWrote
	n.Doorbells += x.Doorbells
}
