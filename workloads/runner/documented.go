package runner

// Property documents a property.
type Property struct{ Name, Default, Doc string }

// Names are the names of properties.
func Names(list []Property) (names []string) {
	for _, q := range list {
		names = append(names, q.Name)
	}
	return names
}

// Properties are those of YCSB's that a run understands; package drivers documents those of the
// stores.
var Properties = []Property{
	{"recordcount", "", "records in the table once it is loaded; always needed"},
	{"operationcount", "", "operations of a run; 0 or none needs maxexecutiontime"},
	{"threadcount", "1", "workers, each with a connection of its own (--threads)"},
	{"target", "0", "operations a second over all threads; 0 is as many as can be (--target)"},
	{"maxexecutiontime", "0", "seconds after which no operation starts; 0 is no limit"},
	{"warmuptime", "0", "seconds at the start of a run that are not measured"},
	{"measurement.interval", "10",
		"seconds between status lines, and entries of the series in the results; 0 for none (--interval)"},
	{"seed", "a new one", "of the generators: the same seed, the same choices of each thread (--seed)"},
	{"table", "usertable", "table name (--table)"},
	{"insertstart", "0", "first record that this process loads, so that several can share the work"},
	{"insertcount", "recordcount - insertstart", "how many records it loads"},
	{"readproportion", "0.95", "share of reads"},
	{"updateproportion", "0.05", "share of updates"},
	{"insertproportion", "0", "share of inserts"},
	{"scanproportion", "0", "share of scans"},
	{"readmodifywriteproportion", "0", "share of reads followed by an update of the same record"},
	{"requestdistribution", "uniform", "uniform, zipfian, latest, hotspot, exponential or sequential"},
	{"zipfianconstant", "0.99", "skew of every zipfian distribution, between 0 and 1"},
	{"hotspotdatafraction", "0.2", "share of the records that is hot"},
	{"hotspotopnfraction", "0.8", "share of the operations on them"},
	{"exponential.percentile", "95", "percentage of the operations ..."},
	{"exponential.frac", "0.8571428571", "... on this share of the records"},
	{"minscanlength", "1", "fewest records of a scan"},
	{"maxscanlength", "1000", "most records of a scan"},
	{"scanlengthdistribution", "uniform", "uniform or zipfian"},
	{"fieldcount", "10", "fields of a record; one field is stored bare, several as a row"},
	{"fieldlength", "100", "bytes of a field, or the most of them"},
	{"minfieldlength", "1", "fewest bytes of a field that is not constant"},
	{"fieldlengthdistribution", "constant", "constant, uniform, zipfian or histogram"},
	{"fieldlengthhistogram", "hist.txt", "file of a histogram: BlockSize<tab>bytes, then block<tab>weight"},
	{"objectsizes", "none", "zippydb, up2x or udb: keys and values of one field as long as in these stores of " +
		"Facebook (FAST 2020), spread included; properties of fields, keyprefix and zeropadding do not count then"},
	{"readallfields", "true", "read all fields, or one"},
	{"writeallfields", "false", "update all fields, or one; stores of whole values read the others first"},
	{"dataintegrity", "false", "write values that reads can check, and check them"},
	{"insertorder", "hashed", "keys are hashes of the record numbers, or ordered: the numbers"},
	{"keyprefix", "user", "what keys begin with"},
	{"zeropadding", "1", "fewest digits of a key"},
	{"core_workload_insertion_retry_limit", "0", "times that a failed insertion is retried while loading"},
	{"core_workload_insertion_retry_interval", "3", "seconds before each retry, give or take a fifth"},
	{"dropdata", "false", "remove what is there before loading"},
	{"outputstyle", "plain", "plain, table or json"},
	{"measurement.output_file", "standard output", "file for the result lines"},
	{"histogram.percentiles.export", "false", "write a file OPERATION-percentiles.txt for each kind of call"},
	{"histogram.percentiles.export.filepath", "./", "what the names of those files begin with"},
	{"silence", "true", "false prints every failure"},
	{"debug.pprof", "off", "address that serves profiles, of the loopback unless it names a host (--pprof)"},
	{"workload", "core", "core is the only one"},
}

// Ignored are properties of YCSB that change nothing here, as they change nothing upstream, or that
// the command line sets itself.
var Ignored = []string{
	"batch.size", "command", "columnfamily", "db", "dotransactions", "exporter", "exportfile", "label",
	"measurementtype", "status", "verbose",
}
