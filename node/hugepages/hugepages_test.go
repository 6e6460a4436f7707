package hugepages

import (
	"testing"
	"testing/fstest"
)

func TestRead(t *testing.T) {
	const rest = "MemTotal:       25165824 kB\nDirectMap\n\n"
	for name, tt := range map[string]struct {
		meminfo string
		pool    Pool
		setting string // for 8 GiB and a byte
	}{
		"nothing is told": {rest, Pool{Size: 2 << 20}, "vm.nr_hugepages=4097"},
		"some are reserved": {
			rest + "HugePages_Total:    1024\nHugePages_Free:      900\nHugePages_Rsvd:      100\n" +
				"Hugepagesize:       2048 kB\n",
			Pool{2 << 20, 1024, 800}, "vm.nr_hugepages=4321",
		},
		"pages of 1 GiB": {
			"HugePages_Total:      16\nHugePages_Free:       16\nHugePages_Rsvd:        0\n" +
				"Hugepagesize:    1048576 kB\n",
			Pool{1 << 30, 16, 16}, "vm.nr_hugepages=9",
		},
		"numbers that contradict each other": {
			"HugePages_Total:       1\nHugePages_Free:        2\nHugePages_Rsvd:        3\nHugepagesize: 0 kB\n",
			Pool{1 << 10, 1, 0}, "vm.nr_hugepages=8388610",
		},
	} {
		p := Read(fstest.MapFS{"proc/meminfo": &fstest.MapFile{Data: []byte(tt.meminfo)}})
		if p != tt.pool || p.Setting(8<<30+1) != tt.setting {
			t.Errorf("%s: %+v, %s", name, p, p.Setting(8<<30+1))
		}
	}
	if p := Read(fstest.MapFS{}); p != (Pool{Size: 2 << 20}) {
		t.Errorf("without /proc: %+v", p)
	}
}
