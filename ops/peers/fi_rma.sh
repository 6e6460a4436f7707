#!/usr/bin/env bash
# Measures one-sided operations over libfabric's tcp;ofi_rxm provider on loopback (see fi_rma.c) and prints a line a
# test and window: name window us_per_op client_cpu_us server_cpu_us. Lines that begin with # are remarks.
#
#   fi_rma.sh [-m spin|wait|auto] [-w "1 16"] [-i OPERATIONS] [-r ROUNDS]
#
# It needs a C compiler and libfabric-dev, which it installs on Debian if it is missing and it may; what it builds is
# kept in $FARKV_CACHE, else in farkv of the user's cache folder.
set -euo pipefail

mode=spin windows='1 16' operations=20000 rounds=5
while getopts m:w:i:r: option; do
	case $option in
	m) mode=$OPTARG ;;
	w) windows=$OPTARG ;;
	i) operations=$OPTARG ;;
	r) rounds=$OPTARG ;;
	*) exit 2 ;;
	esac
done
[ $OPTIND -gt $# ] || { echo "fi_rma.sh: ${!OPTIND}: only options are understood" >&2; exit 2; }

source=$(cd "$(dirname "$0")" && pwd)/fi_rma.c
cache=${FARKV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/farkv}

installed() { echo '#include <rdma/fabric.h>' | cc -E - >/dev/null 2>&1; }

install_libfabric() {
	if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
		echo 'fi_rma.sh: libfabric is missing: install libfabric-dev (or libfabric-devel)' >&2
		return 1
	fi
	{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends libfabric-dev; } >&2
}

build() { # named after its source, so that an older one is never run
	program=$cache/fi_rma-$(sha256sum "$source" | cut -c1-16)
	[ -x "$program" ] && return
	mkdir -p "$cache"
	cc -std=gnu11 -O2 -Wall -Wextra -Wno-unused-parameter -Werror -o "$program.$$" "$source" -lfabric
	mv "$program.$$" "$program"
}

server='' # process id
folder=$(mktemp -d)
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT

measure() { # window
	local port=
	: >"$folder/port"
	timeout --foreground 900 "$program" -s -m "$mode" >"$folder/port" &
	server=$!
	for _ in {1..100}; do
		read -r port <"$folder/port" && break
		kill -0 "$server" 2>/dev/null || break
		sleep 0.1
	done
	[ -n "$port" ] || { echo 'fi_rma.sh: the server did not start' >&2; return 1; }
	timeout --foreground 900 "$program" -m "$mode" -p "$port" -w "$1" -i "$operations" -r "$rounds"
	wait "$server"
	server=''
}

command -v cc >/dev/null || { echo 'fi_rma.sh: there is no C compiler' >&2; exit 1; }
installed || install_libfabric
build
echo "# libfabric tcp;ofi_rxm, $mode, $operations operations a round, median of $rounds rounds, $(nproc) cores"
for window in $windows; do measure "$window"; done
