package tcp_test

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = teeth.Table([][5]string{
	{"a fence drains what is being executed", "pool.go", "	p.drain()\n}\n\n// revoke", "}\n\n// revoke", "TestDrain"},
	{"so does a revocation", "pool.go", "	p.drain()\n	return nil\n}\n\n// drain", "	return nil\n}\n\n// drain", "TestDrain"},
	{"lives are checked", "execute.go", "case r.life <= p.revoked[r.client].Load():", "case false:", "TestRights"},
	{"epochs are checked", "execute.go", "case r.epoch < p.fence.Load():", "case false:", "TestRights"},
	{"keys are checked", "execute.go", "case r.key != p.key && (r.key != p.readKey || !c.readOnly):", "case r.key == 0:", "TestRights"},
	{"readers' keys are for readers", "execute.go", "(r.key != p.readKey || !c.readOnly)", "r.key != p.readKey", "TestRights"},
	{"nobody is no client", "execute.go", "case r.client == 0 && !c.readOnly:", "case false:", "TestRights"},
	{"verbs stay inside", "execute.go", "size := min(c.pool.record.Memory, c.pool.memory.size)", "size := c.pool.memory.size", "TestStrayAtNode"},
	{"atomics are aligned", "execute.go", "q.verb.Atomic() && q.off%8 != 0", "false", "TestStrayAtNode"},
	{"who strays is stopped", "execute.go", "case len(c.broken) > 0 && c.broken[r.client] == r.life:", "case false:", "TestStrayAtNode"},
	{"so is the rest of its frame", "execute.go", "if !strayed {", "if true {", "TestStrayAtNode"},
	{"READs of a frame are bounded", "execute.go", "if read += q.n; read > maxData {", "if false {", "TestBreaches"},
	{"who may read does not write", "execute.go", "c.readOnly && q.verb != rdma.Read", "false", "TestReadToken"},
	{"nor call", "execute.go", "if st == statusOK && c.readOnly {", "if false {", "TestReadToken"},
	{"nor control", "message.go", "if c.readOnly && !slices.Contains(readers, m.Do)", "if false && !slices.Contains(readers, m.Do)", "TestReadToken"},
	{"nor takes another's place", "admit.go", `h.Process = readerOf(h.Process)`, `h.Process += ""`, "TestReaderTakesNobodysPlace"},
	{"the caller's proof is checked", "greet.go", "if !full && !read {", "if false {", "TestTokens"},
	{"the node's proof is checked", "greet.go", `if !hmac.Equal(w.Proof, prove(token, "node", &mine, &theirs, w.unproved())) {`, "if false {", "TestNodeProves"},
	{"proofs are of this connection", "greet.go", "m.Write(node[:])", "", "TestProofIsFresh"},
	{"an empty token is none", "node.go", "len(c.Security.Token) == 0 && (", "c.Security.Token == nil && (", "TestListenWithoutToken"},
	{"a node has a lease before it executes", "conn.go",
		"		if err := c.pool.await(); err != nil {\n			return 0, err\n		}\n", "", "TestNodeCutOffFromPeers"},
	{"and when it answers", "conn.go", "		if err := c.pool.await(); err != nil {\n			return err\n		}\n", "", "TestExpelledInTheMidst"},
	{"a lease counts from the question", "peer.go",
		"	p.guard.Granted(peer, round)\n", "	p.guard.Granted(peer, p.guard.Ask(wall.Now()))\n	_ = round\n", "TestLeaseCountsFromTheQuestion"},
	{"an expelled node is granted nothing", "peer.go", "if !p.guard.Grant(peer) {", "if false {", "TestStoppedNodeIsExpelled"},
	{"a node that is told stops at once", "pool.go", "		p.expelled.Store(true)\n		p.until.Store(0)\n", "", "TestTwoMastersExpel"},
	{"who expels waits", "control.go", "time.After(board.ExpelWait(f.record.Lease))", "time.After(0)", "TestExpelWaits"},
	{"who expels has a majority", "control.go", "if voices > f.record.voters()/2 {", "if true {", "TestExpelWaits"},
	{"a reconnect waits for what was begun", "admit.go", "		o.end()\n", "		o.raw.Close()\n", "TestReconnectDrains"},
	{"a new process is of no pool", "admit.go",
		"if p == nil || p.record.ID != h.Pool || p.record.Index != h.Node {", "if p == nil {", "TestRemoveInUse"},
	{"a pool that was removed leaves nothing", "pool.go", "	old := n.memory\n	n.memory, n.used = fresh, false\n", "	old := fresh\n	n.used = false\n", "TestRemoveInUse"},
	{"one pool at a time", "pool.go", `case p.creator == "" || p.creator != c.process && n.alive(p.creator):`, "case false:", "TestCreateRaces"},
	{"who fails to make a pool lets go", "admin.go", "_ = f.each(func(n int) bool { return adopted[n] }", "_ = f.each(func(n int) bool { return false }", "TestCreateFails"},
	{"a creator that dies does, too", "node.go", "p != nil && p.creator == c.process && !n.closed {", "false && p != nil {", "TestCreatorDies"},
	{"what is proved is what is said", "greet.go", "	m.Write(text)\n", "	_ = text\n", "TestRelay"},
	{"a connection is about one node of one pool", "message.go", `if c.about == "" || id != c.about || index != c.index {`, "if index < -1 {", "TestRelay"},
	{"a witness executes no verbs", "admit.go", "if h.Purpose == forVerbs && h.Node >= p.record.Nodes {", "if false {", "TestWitnessHasNoMemory"},
	{"those that say nothing make room", "admit.go", "len(n.greeting) >= n.mostGreeting && !n.closed", "false", "TestSilentConnections"},
	{"refusals are logged now and then", "admit.go", "n.refusedAt[why] == 0 || now-n.refusedAt[why] > time.Minute", "true", "TestSilentConnections"},
	{"clients do not crowd out peers", "admit.go", "	if c.purpose == forPeer { // clients", "	if false { // clients", "TestConnectionsAreBounded"},
	{"workers do not wait for a node", "link.go", "l.nc != nil && l.bytes <= most {", "l.nc != nil {", "TestPostNeverWrites"},
	{"what waits is bounded", "link.go", "case len(l.out) > mostQueued:", "case false:", "TestQueueIsBounded"},
	{"a silent node is given up", "alive.go", "silent > deadAfter {", "silent < 0 {", "TestStoppedUnderWrites"},
	{"one that is far away is not", "alive.go", "if l.nears(nc, &p) {", "if false {", "TestSlowLink"},
	{"what comes behind a ping says nothing", "alive.go", "if !ok || p.last > 0 && acked >= p.last {", "if !ok {", "TestStoppedUnderWrites"},
	{"a node that drains says so", "conn.go", "	end := c.reassure()\n", "	end := func() {}\n", "TestLongDrain"},
	{"who stops reading has another one go on", "read.go", "	<-s.reader\n	s.next()\n", "	<-s.reader\n", "TestWakeUps"},
	{"who is woken to read, and does not, too", "read.go", "		if !mine {\n			s.next()\n", "		if !mine {\n", "TestWakeUps"},
	{"who waits for several has somebody read", "endpoint.go", "			s.call()\n			asked[k] = s", "			asked[k] = s", "TestWakeUps"},
	{"what was in flight is lost", "link.go", "		f.f.lose(why)\n", "		_, _ = f, why\n", "TestSilentNodes"},
	{"what was queued is not sent again", "link.go", "	l.out, l.bytes = l.out[:0], 0\n", "", "TestQueuedIsLost"},
	{"answers belong to questions", "link.go", "r.n == 0 || r.p[r.head].tag != tag", "r.n == 0", "TestAnswerToNothing"},
	{"identities are given back later", "fabric.go", "		f.owed = append(f.owed, c)\n", "", "TestIdentityIsGivenBack"},
	{"what a device is refused does not land later", "device.go", "		c.detach() // who fences", "		// who fences", "TestDeviceRefuses"},
	{"nor what a fence is told of", "device.go", "	c.detach() // who reads", "	// who reads", "TestDeviceTellsOfFence"},
	{"a connection is in the place of the last", "device.go", "		old.conn.End()\n", "		_ = old\n", "TestDeviceConnects"},
	{"a connection to the memory ends with its process's", "device.go", "if c.ended || c.barred(&a.rights) != statusOK {", "if c.barred(&a.rights) != statusOK {", "TestDeviceConnects"},
	{"and when it is fenced off", "device.go", "if c.ended || c.barred(&a.rights) != statusOK {", "if c.ended {", "TestDeviceFencing"},
	{"the rights to it are checked", "device.go", "	if st := c.barred(r); st != statusOK {", "	if st := c.barred(r); st > 99 {", "TestDeviceRefuses"},
	{"no verb goes past a device", "execute.go", "if st == statusOK && c.pool.region != nil {", "if false {", "TestDeviceBounds"},
	{"connections to the memory are bounded", "device.go", "	if len(c.attached) >= c.pool.record.Clients {", "	if false {", "TestDeviceBounds"},
	{"a pool is for the node's kind of device", "pool.go", "case d == nil || d.Fabric() != want:", "case d == nil:", "TestDeviceAndPool"},
	{"a majority opens a pool", "admin.go", "if up <= f.record.voters()/2 {", "if up < 0 {", "TestRestartedNode"},
})

func TestRules(t *testing.T) { teeth.Check(t, mutants) }

func TestTeeth(t *testing.T) {
	teeth.Suite{Vain: regexp.MustCompile(`panic: `)}.Run(t, mutants)
}
