package reports

// Figure is what a paper states: read off the words, not the plots.
type Figure struct {
	Paper   string  `json:"paper"`
	Section string  `json:"section"`
	Says    string  `json:"says"`
	Value   float64 `json:"value,omitempty"` // where the words have a number
	Unit    string  `json:"unit,omitempty"`
}

// Fusee are the figures of FUSEE's evaluation (Shen et al., FAST 2023), by what they are about.
var Fusee = map[string]Figure{
	"clients": {Section: "6.3, Figure 13", Says: "FUSEE scales with the growing number of clients, up to 128"},
	"nodes-up": {Section: "6.3, Figure 14",
		Says: "the throughput improves as the memory nodes increase from 2 to 3 (A and C, 128 clients)"},
	"nodes-flat": {Section: "6.3, Figure 14",
		Says: "no further improvement up to 5, since the number of compute nodes limits the total"},
	"pairs-512": {Section: "6.3, Figure 12", Says: "C gains 44.1 % with pairs of 512 B", Value: 44.1, Unit: "%"},
	"pairs-256": {Section: "6.3, Figure 12", Says: "C gains 55.9 % with pairs of 256 B", Value: 55.9, Unit: "%"},
	"pairs-why": {Section: "6.3", Says: "the bandwidth of the memory nodes' RNICs limits C with pairs of 1,024 B"},
	"ratio": {Section: "6.3, Figure 15",
		Says: "the throughput decreases as the portion of UPDATEs grows, since they take more RTTs"},
	"cache": {Section: "6.3, Figure 16",
		Says: "the throughput of A decreases with higher thresholds, since bandwidth is wasted on invalidated pairs"},
	"allocation-a": {Section: "6.3, Figure 17", Says: "allocation by the memory nodes costs A 90.9 %", Value: -90.9, Unit: "%"},
	"allocation-c": {Section: "6.3, Figure 17", Says: "C remains the same, since it allocates nothing", Value: 0, Unit: "%"},
	"latency-cr": {Section: "6.4, Figure 19",
		Says: "with sequential CASes (FUSEE-CR) INSERT, UPDATE and DELETE take longer linearly with the replicas"},
	"latency-snapshot": {Section: "6.4, Figure 19", Says: "with SNAPSHOT they grow slightly, since its RTTs are bounded"},
	"latency-search":   {Section: "6.4, Figure 19", Says: "SEARCHes of FUSEE and FUSEE-CR are comparable"},
	"latency-nc": {Section: "6.4, Figure 19",
		Says: "UPDATE, DELETE and SEARCH are faster than without a cache (FUSEE-NC), since they take fewer RTTs"},
	"latency-insert": {Section: "6.4, Figure 19", Says: "INSERT is slightly slower than without a cache, which is to be maintained"},
	"replicas-ab":    {Section: "6.4, Figure 18", Says: "A and B drop as the replicas grow from 1 to 5"},
	"replicas-c":     {Section: "6.4, Figure 18", Says: "C remains the same, since it does not modify the index"},
	"replicas-d1":    {Section: "6.4, Figure 18", Says: "D reaches 8.8 Mops with one replica", Value: 8.8, Unit: "Mops"},
	"replicas-d5":    {Section: "6.4, Figure 18", Says: "D drops slightly, from 8.8 to 8.6 Mops, with five", Value: 8.6, Unit: "Mops"},
	"crash": {Section: "6.4, Figure 20",
		Says: "when one of two memory nodes crashes the throughput of C drops to half of its peak, and stays there", Value: -50, Unit: "%"},
	"elasticity-up": {Section: "6.4, Figure 21", Says: "16 more clients, 32 in all, increase the throughput of C"},
	"elasticity-back": {Section: "6.4, Figure 21",
		Says: "it resumes to its previous level after 16 clients are removed", Value: 0, Unit: "%"},
}

// published returns a figure of FUSEE's with its paper.
func published(about string) Figure {
	f, ok := Fusee[about]
	if !ok {
		panic("no published figure is about " + about)
	}
	f.Paper = "FUSEE"
	return f
}
