#!/usr/bin/env bash
# Prints one table of what a verb costs over tcp: here ('farkv perf', a memory node of its own) and over libfabric (see
# fi_rma.sh, which it installs where it is missing), in turns in one sitting, so that the ratios mean something.
#
#   verbs.sh [-i OPERATIONS] [-r ROUNDS]
#
# Microseconds a verb, of 4 KiB or of a word, one at a time and 16 in flight; medians of the rounds. libfabric spins (both
# ends poll, a core each) or sleeps until something comes. Its write is over as soon as its buffer is free; ours, and
# write-delivered, when the data is in the node's memory. The last column is libfabric's faster way over ours: above 1 ours
# is faster.
set -euo pipefail

operations=5000 rounds=3
while getopts i:r: option; do
	case $option in
	i) operations=$OPTARG ;;
	r) rounds=$OPTARG ;;
	*) exit 2 ;;
	esac
done
[ $OPTIND -gt $# ] || { echo "verbs.sh: ${!OPTIND}: only options are understood" >&2; exit 2; }

here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$here" && go build -o "$folder/farkv" ../farkv)

ours() { # lines as those of fi_rma.sh: name window us_per_op
	"$folder/farkv" perf --fabrics tcp --sizes 4KiB --batches 1,16 --ops "$operations" --time 1s -o json 2>/dev/null | awk -F '[:,]' '
		/"verb"/ { gsub(/[ "]/, "", $2); verb = $2 }
		/"in_flight"/ { window = $2 + 0 }
		/"operations_per_second"/ { print "ours", verb, window, 1e6 / $2 }'
}

libfabric() { # mode
	"$here/fi_rma.sh" -m "$1" -w '1 16' -i "$operations" -r 1 2>/dev/null | awk -v mode="$1" '!/^#/ { print mode, $1, $2, $3 }'
}

for ((round = 0; round < rounds; round++)); do
	ours
	libfabric spin
	libfabric wait
done >"$folder/measured"

sort -k1,1 -k2,2 -k3,3n -k4,4n "$folder/measured" | awk -v rounds="$rounds" '
	{ all[$1, $2, $3, ++count[$1, $2, $3]] = $4 }
	function median(side, verb, window, n) {
		n = count[side, verb, window]
		return n ? all[side, verb, window, int((n + 1) / 2)] : 0
	}
	function row(name, size, verb, peer, window, us, spin, wait, best) {
		us = median("ours", verb, window); spin = median("spin", peer, window); wait = median("wait", peer, window)
		if (!us || !spin || !wait) { print "verbs.sh: " name " was not measured" > "/dev/stderr"; failed = 1; return }
		best = spin < wait ? spin : wait
		printf "%-15s %6s %9d %9.1f %9.1f %9.1f %9.2f\n", name, size, window, us, spin, wait, best / us
	}
	END {
		printf "%-15s %6s %9s %9s %9s %9s %9s\n", "us a verb", "size", "in flight", "farkv", "spinning", "sleeping", "ratio"
		for (window = 1; window <= 16; window += 15) {
			row("read", "4 KiB", "READ", "read", window)
			row("write-delivered", "4 KiB", "WRITE", "write-delivered", window)
			row("write", "4 KiB", "WRITE", "write", window)
			row("fetch-add", "8", "FAA", "fetch-add", window)
			row("compare-swap", "8", "CAS", "compare-swap", window)
		}
		exit failed
	}'
