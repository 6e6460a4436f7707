package reports

// rcuckooFigures are those of RCuckoo's paper (Grant and Snoeren, ATC 2025), by what they are about.
var rcuckooFigures = map[string]Figure{
	"distances-5":  {Section: "3.3, Figure 4a", Says: "with f = 2.3 the rows of 68 % of the keys lie five or fewer apart", Value: 68, Unit: "%"},
	"fill-most":    {Section: "3.3, Figure 4b", Says: "with f = 2.3 and rows of eight entries more than 95 % of the table are full at the first failure", Value: 95, Unit: "%"},
	"fill-rises":   {Section: "3.3, Figure 4b", Says: "a larger f fills more of the table before the first insertion fails"},
	"spans-none":   {Section: "3.3, Figure 4c", Says: "while a table of 100 thousand rows is filled to 95 % slightly more than half of the INSERTs move nothing"},
	"spans-32":     {Section: "3.3, Figure 4c", Says: "95 % of the INSERTs have paths that span 32 or fewer rows"},
	"spans-256":    {Section: "3.3, Figure 4c", Says: "and nearly 99 % 256 or fewer"},
	"locks-sweet":  {Section: "3.4.1, Figure 5", Says: "the fewest trips, at the 99th percentile, are with 2 to 16 rows a lock"},
	"locks-global": {Section: "3.4.1, Figure 5", Says: "a single global lock results in high contention"},
	"locks-single": {Section: "3.4.1, Figure 5", Says: "with a lock a row, and one lock a CAS, trips are many"},
	"locks-four":   {Section: "5.5", Says: "performance is similar with four or more locks a CAS"},

	"locality-p99": {Section: "5.5, Figure 8b", Says: "the 99th percentile takes an order of magnitude fewer trips with dependent hashing and BFS than with independent hashing and DFS"},
	"locality-p50": {Section: "5.5, Figure 8b", Says: "the medians are of the same order"},

	"load-c":      {Section: "5.3, Figure 6a", Says: "RCuckoo has the highest throughput of C, and FUSEE suffers from its values in extents"},
	"load-b":      {Section: "1, Figure 6b", Says: "with 320 clients RCuckoo has up to 2.5 times the others' throughput of B", Value: 2.5},
	"load-a":      {Section: "5.3, Figure 6c", Says: "RCuckoo and FUSEE perform similarly under A"},
	"load-scales": {Section: "5.3, Figure 6c", Says: "RCuckoo goes on to scale with more than 250 clients under A"},
	"load-get":    {Section: "3.2.1", Says: "a read of an inline value takes one round trip"},
	"load-update": {Section: "3.2.2", Says: "most UPDATEs that meet nobody take two round trips"},

	"inserts-empty":      {Section: "5.3, Figure 7", Says: "320 clients insert 11.5 million entries a second into a table that is nearly empty", Value: 11.5, Unit: "Mops"},
	"inserts-full":       {Section: "5.3, Figure 7", Says: "and 4.5 million into one that is 90 % full", Value: 4.5, Unit: "Mops"},
	"inserts-drop":       {Section: "5.3, Figure 7", Says: "that is 61 % less", Value: -61, Unit: "%"},
	"inserts-mixes":      {Section: "5.3, Figure 7", Says: "throughput falls as the table fills, but for C"},
	"inserts-twice":      {Section: "5.3, Figure 7", Says: "INSERTs take about twice as long into a table that is full as into one that is empty"},
	"inserts-median":     {Section: "1", Says: "the median INSERT takes two round trips"},
	"inserts-bytes":      {Section: "5.3, Figure 7c", Says: "operations of A move at most twice the bytes when the table is full"},
	"inserts-verbs":      {Section: "5.3, Figure 7d", Says: "and take at most 1.5 times the messages"},
	"inserts-fusee":      {Section: "5.3", Says: "FUSEE inserts at most 9.1 million a second", Value: 9.1, Unit: "Mops"},
	"inserts-fusee-flat": {Section: "5.3", Says: "however full it is"},
	"inserts-fusee-us":   {Section: "5.3", Says: "FUSEE's INSERT takes about as long as RCuckoo's best"},

	"entries-insert": {Section: "5.5, Figure 8c", Says: "bandwidth limits INSERTs of larger entries"},
	"entries-read":   {Section: "5.5, Figure 8c", Says: "reads are largely unaffected by the size of entries"},

	"extents-b":    {Section: "5.5, Figure 8d", Says: "B is 21 % faster with inline values of 8 B than with extents", Value: 21, Unit: "%"},
	"extents-a":    {Section: "5.5, Figure 8d", Says: "and A is 37 % faster", Value: 37, Unit: "%"},
	"extents-link": {Section: "5.5, Figure 8d", Says: "the link limits reads of values of more than 64 B"},

	"failures-500":   {Section: "5.4, Figure 8a", Says: "the throughput of A remains high until about 500 clients fail a second"},
	"failures-grain": {Section: "5.4, Figure 8a", Says: "beyond that finer-grained locks lead to less degradation"},
	"failures-works": {Section: "5.4", Says: "RCuckoo remains functional in the face of hundreds of failures a second"},

	"device-gain": {Section: "2.2", Says: "locks in the NIC's memory gain up to 3 times of throughput where clients contend", Value: 3},
	"device-us":   {Section: "3.4.2", Says: "and are faster to take, as no PCIe round trip is waited for"},

	"spans-far": {Section: "3.3, Figure 4c",
		Says: "with independent hashing those that move anything almost always span two thousand rows or more"},
}
