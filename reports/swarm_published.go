package reports

// swarmTrips is SWARM's Table 2, by stores: of a GET and of an UPDATE, in the common case and at the 99th percentile.
var swarmTrips = map[string][4]string{
	"raw":    {"1", "1", "1", "1"},
	"swarm":  {"1", "1", "1", "1"},
	"dm-abd": {"2", "2", "2", "2"},
	"fusee":  {"1-2", "2", "4", "5"},
}

// swarmResources is SWARM's Table 3, by stores: CPU of a client in percent, MiB of its cache, Gbit/s of all four clients, GiB
// of disaggregated memory.
var swarmResources = map[string][4]float64{
	"raw":    {46.6, 22.9, 6.55, 0.95},
	"dm-abd": {99.0, 22.9, 6.99, 3.00},
	"swarm":  {61.3, 30.5, 7.41, 4.06},
	"fusee":  {74.2, 22.9, 8.15, 2.04},
}

// swarmFigures are those of SWARM's evaluation (Murat et al., SOSP 2024), by what they are about.
var swarmFigures = map[string]Figure{
	"trips-raw":    {Section: "7, Table 2", Says: "RAW takes 1 trip for a GET and for an UPDATE, at the 99th percentile too", When: "the median, and the 99th percentile, are these numbers"},
	"trips-swarm":  {Section: "7, Table 2", Says: "SWARM-KV takes 1 trip for a GET and for an UPDATE, at the 99th percentile too", When: "the median, and the 99th percentile, are these numbers"},
	"trips-dm-abd": {Section: "7, Table 2", Says: "DM-ABD takes 2 trips for a GET and for an UPDATE, at the 99th percentile too", When: "the median, and the 99th percentile, are these numbers"},
	"trips-fusee":  {Section: "7, Table 2", Says: "FUSEE takes 1 or 2 trips for a GET and 4 for an UPDATE, 2 and 5 at the 99th percentile", When: "the median, and the 99th percentile, are these numbers"},

	"get-raw": {Section: "7.1, Figure 5", Says: "the median GET of RAW takes 1.9 µs", Printed: "1.9", Unit: "µs",
		Fitted: "the profile's Propagation and PCIe were chosen so that a READ of 64 B takes 1.9 µs and a WRITE 1.6"},
	"get-swarm":     {Section: "7.1, Figure 5", Says: "the median GET of SWARM-KV takes 2.4 µs", Printed: "2.4", Unit: "µs"},
	"get-swarm-p1":  {Section: "7.1, Figure 5", Says: "its 1st percentile is 2.2 µs", Printed: "2.2", Unit: "µs"},
	"get-swarm-p99": {Section: "7.1, Figure 5", Says: "its 99th percentile is 2.8 µs", Printed: "2.8", Unit: "µs"},
	"get-dm-abd":    {Section: "7.1, Figure 5", Says: "the median GET of DM-ABD takes 4.3 µs", Printed: "4.3", Unit: "µs"},
	"get-fusee":     {Section: "7.1, Figure 5", Says: "GETs of FUSEE in one trip take 2.9 µs", Printed: "2.9", Unit: "µs"},
	"get-fusee-p90": {Section: "7.1, Figure 5", Says: "the 90th percentile of FUSEE's GETs is 4.8 µs", Printed: "4.8", Unit: "µs"},
	"one-fusee":     {Section: "7.1", Says: "87 % of FUSEE's GETs take one trip under B", Printed: "87", Unit: "%"},
	"one-fusee-a": {Section: "7.1", Says: "and 41 % under A", Printed: "41", Unit: "%",
		Fitted: "the threshold of FUSEE's cache, 1, was chosen because as many GETs take one trip then"},

	"update-raw": {Section: "7.1, Figure 5", Says: "the median UPDATE of RAW takes 1.6 µs", Printed: "1.6", Unit: "µs",
		Fitted: "the profile's Propagation and PCIe were chosen so that a READ of 64 B takes 1.9 µs and a WRITE 1.6"},
	"update-swarm":     {Section: "7.1, Figure 5", Says: "the median UPDATE of SWARM-KV takes 3.1 µs", Printed: "3.1", Unit: "µs"},
	"update-dm-abd":    {Section: "7.1, Figure 5", Says: "the median UPDATE of DM-ABD takes 4.9 µs", Printed: "4.9", Unit: "µs"},
	"update-fusee":     {Section: "7.1, Figure 5", Says: "UPDATEs of FUSEE in four trips take 8.5 µs", Printed: "8.5", Unit: "µs"},
	"update-fusee-p90": {Section: "7.1, Figure 5", Says: "the 90th percentile of FUSEE's UPDATEs is 10.4 µs", Printed: "10.4", Unit: "µs"},

	"caches-swarm":  {Section: "7.1, Figure 6", Says: "SWARM-KV misses its caches 45.6 % of the time", Printed: "45.6", Unit: "%"},
	"caches-dm-abd": {Section: "7.1, Figure 6", Says: "DM-ABD misses its caches 42.5 % of the time", Printed: "42.5", Unit: "%"},
	"caches-fusee": {Section: "7.1, Figure 6", Says: "FUSEE accesses the index 48.8 % of the time, since it misses its caches 42.5 % of it and" +
		" 11 % of the hits are stale", Printed: "48.8", Unit: "%"},
	"caches-mean": {Section: "7.1, Figure 6", Says: "SWARM-KV's average latency remains better than DM-ABD's and FUSEE's for both operations", When: "all four are longer"},
	"caches-miss": {Section: "7.1, Figure 6", Says: "an UPDATE that misses takes 2 trips more on SWARM-KV, and 1 on DM-ABD", When: "most UPDATEs that miss take 3 trips on SWARM-KV and 3 on DM-ABD"},

	"load-a1-us":   {Section: "7.2, Figure 7", Says: "with A and one operation at a time an operation takes 2.7 µs on average", Printed: "2.7", Unit: "µs"},
	"load-a1-kops": {Section: "7.2, Figure 7", Says: "and a core does 264 kops", Printed: "264", Unit: "kops"},
	"load-a2":      {Section: "7.2, Figure 7", Says: "a second operation makes A's latency 5 % longer and nearly doubles the throughput", When: "it is 5 % longer, to a digit, and the throughput grows by more than 80 %"},
	"load-a3":      {Section: "7.2, Figure 7", Says: "a third makes it 21 % longer, and gains 22 %", When: "these are the numbers, to a digit"},
	"load-a-most":  {Section: "7.2, Figure 7", Says: "a core does at most 640 kops of A, with 6 operations", Printed: "640", Unit: "kops"},
	"load-b1-us":   {Section: "7.2, Figure 7", Says: "with B and one operation at a time an operation takes 2.4 µs on average", Printed: "2.4", Unit: "µs"},
	"load-b1-kops": {Section: "7.2, Figure 7", Says: "and a core does 389 kops", Printed: "389", Unit: "kops"},
	"load-b-most": {Section: "7.2, Figure 7", Says: "a core does at most 1030 kops of B, with 5 operations", Printed: "1030", Unit: "kops",
		Fitted: "the profile's Doorbell, Verb and Poll were chosen so that a core does 1030 kops"},
	"load-b-flat": {Section: "7.2, Figure 7", Says: "more than 3 operations yield negligible throughput, and cost nearly 1 µs each (B)", When: "it grows by less than 10 %, at 0.75 to 1.05 µs for each"},
	"load-dm-a":   {Section: "7.2, Figure 7", Says: "DM-ABD reaches a similar maximum throughput of A", When: "it is within 15 %"},
	"load-dm-b":   {Section: "7.2, Figure 7", Says: "SWARM-KV outperforms DM-ABD with B", When: "it does more at the most"},

	"clients-most":   {Section: "7.3, Figure 8", Says: "with one operation at a time 64 clients do 15.9 Mops", Printed: "15.9", Unit: "Mops"},
	"clients-linear": {Section: "7.3, Figure 8", Says: "nearly linear up to 32 clients; then hyper-threading slows its growth", When: "32 do more than 27 times of what one does, and 64 less than 1.9 times of what 32 do"},
	"clients-get1":   {Section: "7.3, Figure 8", Says: "GETs take 2.2 µs with one client", Printed: "2.2", Unit: "µs"},
	"clients-get64":  {Section: "7.3, Figure 8", Says: "GETs take 3.69 µs with 64", Printed: "3.69", Unit: "µs"},
	"clients-put1":   {Section: "7.3, Figure 8", Says: "UPDATEs take 2.7 µs with one client", Printed: "2.7", Unit: "µs"},
	"clients-put64":  {Section: "7.3, Figure 8", Says: "UPDATEs take 4.3 µs with 64", Printed: "4.3", Unit: "µs"},
	"clients-dm":     {Section: "7.3, Figure 8", Says: "GETs and UPDATEs have a much lower latency than DM-ABD's", When: "a GET takes less than 0.8 times, and an UPDATE less than 0.9"},
	"clients-four":   {Section: "7.3, Figure 8", Says: "with 4 operations at a time the throughput peaks at 28.3 Mops, with 40 clients", When: "the peak is 28.3, to a digit, and with 40"},
	"clients-fabric": {Section: "7.3, Figure 8", Says: "beyond them the 100 Gbit/s fabric is the bottleneck, and DM-ABD is faster from 56 clients on", When: "a link is in use most with 64, and DM-ABD is ahead with 56 and not with fewer"},

	"values-linear": {Section: "7.4, Figure 9", Says: "latencies grow linearly with the size, and are below 10 µs up to 8 KiB", When: "no size is 10 % off the line through the smallest and the largest, and all are below 10 µs"},
	"values-get":    {Section: "7.4, Figure 9", Says: "GETs of 8 KiB are 33 % faster with in-place data, by 2.5 µs", When: "these are the numbers, to a digit"},
	"values-update": {Section: "7.4, Figure 9", Says: "UPDATEs are as fast with in-place data as without", When: "they differ by less than 10 % at the largest size"},
	"values-rate":   {Section: "7.4, Figure 9", Says: "in-place data gain B 50 % of throughput at 8 KiB", Printed: "50", Unit: "%"},

	"replicas-get":    {Section: "7.5, Figure 10", Says: "the median GET takes 2.3 µs with 3 replicas", Printed: "2.3", Unit: "µs"},
	"replicas-update": {Section: "7.5, Figure 10", Says: "and the median UPDATE 3 µs", Printed: "3", Unit: "µs"},
	"replicas-more":   {Section: "7.5, Figure 10", Says: "each 2 more replicas cost a GET 0.2 µs and an UPDATE 0.5 µs", When: "these are the numbers, to a digit"},
	"replicas-5":      {Section: "7.5, Figure 10", Says: "5 replicas cost 9 % of the throughput", Printed: "-9", Unit: "%"},
	"replicas-7":      {Section: "7.5, Figure 10", Says: "7 replicas cost 7 % more", Printed: "-7", Unit: "%"},
	"replicas-dm-get": {Section: "7.5, Figure 10", Says: "the median GET of DM-ABD takes 4.3 µs with 3 replicas", Printed: "4.3", Unit: "µs"},
	"replicas-dm-put": {Section: "7.5, Figure 10", Says: "and its median UPDATE 4.7 µs", Printed: "4.7", Unit: "µs"},

	"resources-cpu":    {Section: "7.6, Table 3", Says: "SWARM-KV's CPU use is 30 % higher than RAW's, and 38 % and 16 % lower than DM-ABD's and FUSEE's", When: "these are the numbers, to a digit"},
	"resources-io":     {Section: "7.6, Table 3", Says: "DM-ABD moves 7 % more bytes than RAW, SWARM-KV 6 % more than DM-ABD, FUSEE 10 % more than SWARM-KV", When: "these are the numbers, to a digit"},
	"resources-memory": {Section: "7.6, Table 3", Says: "DM-ABD needs 3.1 times the memory of RAW, SWARM-KV 35 % more than DM-ABD, FUSEE 50 % less than SWARM-KV", When: "these are the numbers, to a digit"},

	"crash-available": {Section: "7.7, Figure 11", Says: "the failure of a memory node has no impact on SWARM-KV's availability", When: "no operation fails, and no client is without one that ended for 200 µs"},
	"crash-recovers":  {Section: "7.7, Figure 11", Says: "its latency increases, and recovers", When: "it grows by more than 5 %, and is within 10 % in the end"},
	"crash-fusee":     {Section: "7.7", Says: "synchronous systems like FUSEE take at least tens of milliseconds to recover", When: "a client is without an operation that ended for more than 10 ms"},

	"one-get":       {Section: "7.8, Figure 12", Says: "of 16 clients' GETs of one key 14 % take 1 trip and 8 % take 2, the others more", When: "these are the numbers, to a digit"},
	"one-get-p99":   {Section: "7.8, Figure 12", Says: "their 99th percentile is 30 µs", Printed: "30", Unit: "µs"},
	"one-update":    {Section: "7.8, Figure 12", Says: "of their UPDATEs 73 % take 1 trip, 7 % 2, 14 % 3 and 6 % 4: at most 4", When: "these are the numbers, to a digit, and none takes more"},
	"one-put-p99":   {Section: "7.8, Figure 12", Says: "their 99th percentile is 10 µs", Printed: "10", Unit: "µs"},
	"one-32-get":    {Section: "7.8", Says: "with 32 clients the median GET takes 4 µs more", Printed: "4", Unit: "µs"},
	"one-32-update": {Section: "7.8", Says: "and UPDATEs are mostly unaffected", When: "the median grows by less than 20 %"},
	"one-32-dm":     {Section: "7.8", Says: "DM-ABD's medians both reach 47 µs with 32 clients", When: "both are, to a digit"},

	"words-1":  {Section: "7.9, Figure 13", Says: "23 % of UPDATEs take one trip with 1 buffer for 64 clients under B", Printed: "23", Unit: "%"},
	"words-4":  {Section: "7.9, Figure 13", Says: "57 % with 4", Printed: "57", Unit: "%"},
	"words-16": {Section: "7.9, Figure 13", Says: "86 % with 16", Printed: "86", Unit: "%"},
	"words-64": {Section: "7.9, Figure 13", Says: "99 % with 64", Printed: "99", Unit: "%"},
	"words-get": {Section: "7.9, Figure 13",
		Says: "the median GET takes 3.1, 3.2, 3.3 and 3.6 µs with 1, 4, 16 and 64 buffers: 16 % more with 64 than with 1", When: "all five are the numbers, to a digit"},
	"words-put": {Section: "7.9, Figure 13",
		Says: "UPDATEs in one trip take 3.6, 3.9, 4 and 4.3 µs: 19 % more with 64 than with 1", When: "all five are the numbers, to a digit"},
	"words-a": {Section: "7.9", Says: "under A 2 %, 11 %, 39 % and 99 % of UPDATEs take one trip", When: "all four are the numbers, to a digit"},
}
