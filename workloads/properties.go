package workloads

import (
	"strconv"
	"time"
)

// Spec is a workload as YCSB's properties describe it; each field is the property of its name. See
// Parse.
type Spec struct {
	Table          string
	RecordCount    int64 // records in the table once it is loaded
	OperationCount int64 // of a run, over all workers; 0: until the time is up
	InsertStart    int64 // the first record that this process loads, and the first that its runs use
	InsertCount    int64 // and how many

	FieldCount, FieldLength, MinFieldLength int
	FieldLengthDistribution                 string // constant, uniform, zipfian, histogram
	ReadAllFields, WriteAllFields           bool
	// ObjectSizes makes keys and values as long as in one of Facebook's stores, zippydb, up2x or
	// udb, of one field; "" does not. FieldLength is then the longest value. Under DataIntegrity a
	// value's length follows from the key, as the key's own follows from the record's number;
	// otherwise it is drawn at each write.
	ObjectSizes   string
	DataIntegrity bool // values follow from key and field, and reads check them

	Read, Update, Insert, Scan, ReadModifyWrite float64 // proportions of the operations

	RequestDistribution    string // uniform, zipfian, latest, hotspot, exponential, sequential
	Theta                  float64
	HotspotData            float64 // the share of the records that is hot
	HotspotOps             float64 // the share of the operations on them
	ExponentialPercentile  float64
	ExponentialFrac        float64
	MinScan, MaxScan       int
	ScanLengthDistribution string // uniform, zipfian

	KeyPrefix   string
	Ordered     bool // keys are record numbers, not hashes of them
	ZeroPadding int  // least digits of a key
	// ShortKeys makes binary keys of so many bytes instead; 0: it does not. Of 4 bytes they are the
	// records' numbers, as in RCuckoo's evaluation (section 5.3), of 8 hashes of the numbers, as in
	// rTX's (section 6).
	ShortKeys int

	InsertionRetries  int           // of a record that could not be loaded
	InsertionInterval time.Duration // between retries, give or take a fifth

	lengths lengths
	keys    lengths // of ObjectSizes
}

const (
	maxField   = 1 << 30 // bytes
	maxFields  = 1 << 16
	maxRecords = 1 << 40
	maxScan    = 1 << 20
)

// Parse reads a workload from YCSB's properties. What they leave out has YCSB's default;
// recordcount has none. An error is a UsageError.
func Parse(p Properties) (*Spec, error) {
	r := Reader{Properties: p}
	s := &Spec{
		Table:          r.Text("table", "usertable"),
		RecordCount:    r.Count("recordcount", 0, 0, maxRecords),
		OperationCount: r.Count("operationcount", 0, 0, maxRecords),
		InsertStart:    r.Count("insertstart", 0, 0, maxRecords),

		FieldCount:              int(r.Count("fieldcount", 10, 1, maxFields)),
		FieldLength:             int(r.Count("fieldlength", 100, 1, maxField)),
		MinFieldLength:          int(r.Count("minfieldlength", 1, 1, maxField)),
		FieldLengthDistribution: r.Choice("fieldlengthdistribution", "constant", "uniform", "zipfian", "histogram"),
		ReadAllFields:           r.Bool("readallfields", true),
		WriteAllFields:          r.Bool("writeallfields", false),
		ObjectSizes:             r.Choice("objectsizes", "none", "zippydb", "up2x", "udb"),
		DataIntegrity:           r.Bool("dataintegrity", false),

		Read:            r.Share("readproportion", 0.95),
		Update:          r.Share("updateproportion", 0.05),
		Insert:          r.Share("insertproportion", 0),
		Scan:            r.Share("scanproportion", 0),
		ReadModifyWrite: r.Share("readmodifywriteproportion", 0),

		RequestDistribution: r.Choice("requestdistribution",
			"uniform", "zipfian", "latest", "hotspot", "exponential", "sequential"),
		Theta:                  r.Number("zipfianconstant", Theta, 0, 1),
		HotspotData:            r.Share("hotspotdatafraction", 0.2),
		HotspotOps:             r.Share("hotspotopnfraction", 0.8),
		ExponentialPercentile:  r.Number("exponential.percentile", 95, 0, 100),
		ExponentialFrac:        r.Number("exponential.frac", 0.8571428571, 0, 1e6),
		MinScan:                int(r.Count("minscanlength", 1, 1, maxScan)),
		MaxScan:                int(r.Count("maxscanlength", 1000, 1, maxScan)),
		ScanLengthDistribution: r.Choice("scanlengthdistribution", "uniform", "zipfian"),

		KeyPrefix:   r.Text("keyprefix", "user"),
		Ordered:     r.Choice("insertorder", "hashed", "ordered") == "ordered",
		ZeroPadding: int(r.Count("zeropadding", 1, 0, 1024)),

		InsertionRetries: int(r.Count("core_workload_insertion_retry_limit", 0, 0, 1<<30)),
		InsertionInterval: time.Duration(r.Number("core_workload_insertion_retry_interval", 3, 0, 1e6) *
			float64(time.Second)),
	}
	s.InsertCount = r.Count("insertcount", s.RecordCount-s.InsertStart, 0, maxRecords)
	if s.ObjectSizes == "none" {
		s.ObjectSizes = ""
	}
	if r.Err == nil {
		r.Err = s.finish()
	}
	if r.Err != nil {
		return nil, r.Err
	}
	return s, nil
}

// finish checks what the properties say together.
func (s *Spec) finish() error {
	switch {
	case s.RecordCount == 0:
		return Usagef("recordcount is not set: add -p recordcount=N, or a workload file with -P")
	case s.InsertCount <= 0 || s.InsertStart+s.InsertCount > s.RecordCount:
		return Usagef("insertstart=%d and insertcount=%d do not fit into recordcount=%d",
			s.InsertStart, s.InsertCount, s.RecordCount)
	case s.Read+s.Update+s.Insert+s.Scan+s.ReadModifyWrite <= 0:
		return Usagef("all proportions are 0: set readproportion, updateproportion or another")
	case s.MinFieldLength > s.FieldLength:
		return Usagef("minfieldlength=%d exceeds fieldlength=%d", s.MinFieldLength, s.FieldLength)
	case s.MinScan > s.MaxScan:
		return Usagef("minscanlength=%d exceeds maxscanlength=%d", s.MinScan, s.MaxScan)
	case s.DataIntegrity && s.ObjectSizes == "" && s.FieldLengthDistribution != "constant":
		return Usagef("dataintegrity=true needs fieldlengthdistribution=constant, not %s", s.FieldLengthDistribution)
	}
	if sizes, ok := sizesOf[s.ObjectSizes]; ok {
		s.keys, s.lengths = sizes.keys(), sizes.values()
		s.FieldCount, s.FieldLengthDistribution = 1, ""
		s.FieldLength, s.MinFieldLength = s.lengths.max, s.lengths.least()
		return nil
	}
	s.lengths = newLengths(s.FieldLengthDistribution, s.MinFieldLength, s.FieldLength, s.Theta)
	return nil
}

// FieldLengths replaces the distribution of field lengths by the text of a histogram file.
func (s *Spec) FieldLengths(histogram string) error {
	l, err := parseLengths(histogram)
	if err != nil {
		return Usagef("field length histogram: %v", err)
	}
	s.lengths, s.FieldLength = l, l.max
	return nil
}

// PairBytes is the size of the largest key, of records that are inserted too, with the largest
// value of its record, in bytes.
func (s *Spec) PairBytes() int { return s.KeyBytes() + RowBytes(s.FieldCount, s.FieldLength) }

// KeyBytes is the size of the largest key, of records that are inserted too, in bytes.
func (s *Spec) KeyBytes() int {
	table := len(tablePrefix(s.Table))
	switch {
	case s.ShortKeys > 0:
		return table + s.ShortKeys
	case s.sized():
		return table + s.keys.max
	}
	digits := 19
	if s.Ordered {
		digits = len(strconv.FormatInt(s.RecordCount+s.ExpectedInserts(), 10))
	}
	return table + len(s.KeyPrefix) + max(digits, s.ZeroPadding)
}

// LeastPairBytes is the size of a key with the smallest value of its record that is known of, in
// bytes.
func (s *Spec) LeastPairBytes() int {
	if s.FieldLengthDistribution == "constant" {
		return s.PairBytes()
	}
	if s.sized() {
		return len(tablePrefix(s.Table)) + s.keys.least() + s.MinFieldLength
	}
	return len(tablePrefix(s.Table)) + len(s.KeyPrefix) + RowBytes(s.FieldCount, 1)
}

// Smaller says how to make records smaller.
func (s *Spec) Smaller() string {
	if s.sized() {
		return "leave out objectsizes"
	}
	return "lower fieldlength or fieldcount"
}

// ExpectedInserts is how many records a run is expected to add at most, as YCSB reckons: twice its
// share.
func (s *Spec) ExpectedInserts() int64 {
	total := s.Read + s.Update + s.Insert + s.Scan + s.ReadModifyWrite
	return int64(2 * float64(s.OperationCount) * s.Insert / total)
}
