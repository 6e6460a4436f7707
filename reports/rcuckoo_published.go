package reports

// rcuckooFigures are those of RCuckoo's paper (Grant and Snoeren, ATC 2025), by what they are about.
var rcuckooFigures = map[string]Figure{
	"distances-5": {Section: "3.3, Figure 4a", Says: "with f = 2.3 the rows of 68 % of the keys lie five or fewer apart", Value: 68, Unit: "%"},
	"fill-most":   {Section: "3.3, Figure 4b", Says: "with f = 2.3 and rows of eight entries more than 95 % of the table are full at the first failure", Value: 95, Unit: "%"},
	"fill-rises":  {Section: "3.3, Figure 4b", Says: "a larger f fills more of the table before the first insertion fails"},
	"spans-none":  {Section: "3.3, Figure 4c", Says: "while a table of 100 thousand rows is filled to 95 % slightly more than half of the INSERTs move nothing"},
	"spans-32":    {Section: "3.3, Figure 4c", Says: "95 % of the INSERTs have paths that span 32 or fewer rows"},
	"spans-256":   {Section: "3.3, Figure 4c", Says: "and nearly 99 % 256 or fewer"},
	"spans-far": {Section: "3.3, Figure 4c",
		Says: "with independent hashing those that move anything almost always span two thousand rows or more"},
}
