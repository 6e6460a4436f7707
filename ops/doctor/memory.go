package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/hugepages"
	"github.com/farkv/farkv/ops/format"
)

// memlock compares what may be locked with what a node registers.
func (d *Examination) memlock(_ context.Context, t *Topic) {
	limit, err := d.Memlock()
	switch {
	case err != nil:
		t.warn("RLIMIT_MEMLOCK", "cannot be read: "+err.Error(), "")
	case limit == math.MaxUint64:
		t.ok("RLIMIT_MEMLOCK", "unlimited")
	case d.mayLock():
		t.ok("RLIMIT_MEMLOCK", format.Size(limit)+", which does not bind this user (CAP_IPC_LOCK)")
	case limit < fabrics.NodeOf(d.Memory).Bytes():
		t.missing("RLIMIT_MEMLOCK", fmt.Sprintf("%s, and a memory node of %s registers that and its telemetry",
			format.Size(limit), format.Size(d.Memory)),
			"'ulimit -l unlimited' in the shell, LimitMEMLOCK=infinity in a systemd unit, or '* - memlock unlimited' "+
				"in /etc/security/limits.d/")
	default:
		t.ok("RLIMIT_MEMLOCK",
			fmt.Sprintf("%s, enough for a memory node of %s", format.Size(limit), format.Size(d.Memory)))
	}
}

// ipcLock is the bit of CAP_IPC_LOCK. RLIMIT_MEMLOCK does not apply to a process that has this
// capability (capabilities(7)).
const ipcLock = 14

func (d *Examination) mayLock() bool {
	text, _ := d.text("proc/self/status")
	for line := range strings.Lines(text) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && caps>>ipcLock&1 == 1
		}
	}
	return false
}

// hugePages reports the pages of each size, and warns when fewer are free than a node takes. The
// files of a size count pages as free that a mapping has reserved.
func (d *Examination) hugePages(_ context.Context, t *Topic) {
	const folder = "sys/kernel/mm/hugepages"
	for _, name := range d.there(folder) {
		kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(name, "hugepages-"), "kB"), 10, 40)
		nr, left := d.number(folder+"/"+name+"/nr_hugepages"), d.number(folder+"/"+name+"/free_hugepages")
		left -= max(0, d.number(folder+"/"+name+"/resv_hugepages"))
		if err != nil || nr < left || left < 0 || nr == 0 {
			continue
		}
		t.ok("pages of "+format.Size(kb<<10),
			fmt.Sprintf("%s reserved, %s free", format.Count(nr), format.Count(left)))
	}
	pool, bytes := hugepages.Read(d.Root), fabrics.NodeOf(d.Memory).Bytes()
	size := format.Size(pool.Size)
	do := fmt.Sprintf("'sysctl %s' for an rdma node of %s in pages of %s: an RNIC then needs fewer translations",
		pool.Setting(bytes), format.Size(d.Memory), size)
	switch need := pool.Pages(bytes); {
	case pool.Total == 0:
		t.missing("huge pages", "there are none of "+size, do)
	case pool.Free < need:
		t.warn("huge pages", fmt.Sprintf("%s of %s are free, and an rdma node of %s takes %s",
			format.Count(pool.Free), size, format.Size(d.Memory), format.Count(need)), do)
	}
	if found := d.mounts(func(kind string, _ []string) bool { return kind == "hugetlbfs" }); len(found) > 0 {
		t.ok("hugetlbfs", "at "+strings.Join(found, ", "))
	}
	if thp := d.line("sys/kernel/mm/transparent_hugepage/enabled"); thp != "" {
		t.ok("transparent", chosen(thp))
	}
}

// chosen is the one in brackets of several: "always [madvise] never".
func chosen(s string) string {
	_, rest, ok := strings.Cut(s, "[")
	word, _, closed := strings.Cut(rest, "]")
	if !ok || !closed {
		return s
	}
	return word
}

// leastShared is what a small pool takes.
const leastShared = 64 << 20

// shm tells what is free for pools in shared memory.
func (d *Examination) shm(_ context.Context, t *Topic) {
	folder, free, err := d.Room()
	switch {
	case err != nil:
		t.missing("folder of pools", err.Error(), format.FolderSetting())
	case free < leastShared:
		t.missing("folder of pools", fmt.Sprintf("%s, %s free", folder, format.Size(free)),
			"mount -o remount,size=8G /dev/shm, or docker run --shm-size 8g; 'farkv list' shows the pools that "+
				"are there")
	case free < d.Memory:
		t.warn("folder of pools",
			fmt.Sprintf("%s, %s free, less than %s", folder, format.Size(free), format.Size(d.Memory)),
			"mount -o remount,size=8G /dev/shm, or docker run --shm-size 8g, for larger pools")
	default:
		t.ok("folder of pools", fmt.Sprintf("%s, %s free", folder, format.Size(free)))
	}
}

// pmem looks for persistent memory: namespaces, devices, and file systems that map it directly.
func (d *Examination) pmem(_ context.Context, t *Topic) {
	const bus = "sys/bus/nd/devices"
	dimms, usable := 0, false
	for _, name := range d.there(bus) {
		if strings.HasPrefix(name, "nmem") {
			dimms++
		}
		bytes := d.number(bus + "/" + name + "/size")
		if !strings.HasPrefix(name, "namespace") || bytes <= 0 {
			continue // a namespace of no size is one that could be made
		}
		switch mode := d.line(bus + "/" + name + "/mode"); mode {
		case "fsdax", "devdax", "memory", "dax":
			usable = true
			t.ok(name, fmt.Sprintf("%s, %s", mode, format.Size(uint64(bytes))))
		default:
			t.warn(name, fmt.Sprintf("%s, %s: a CPU cannot map it", mode, format.Size(uint64(bytes))),
				"ndctl create-namespace --reconfig "+name+" --mode fsdax (erases it)")
		}
	}
	if dimms > 0 {
		t.ok("DIMMs", format.Count(dimms))
	}
	var devices []string
	for _, name := range d.there("dev") {
		if strings.HasPrefix(name, "pmem") || strings.HasPrefix(name, "dax") && name != "dax" {
			devices = append(devices, "/dev/"+name)
		}
	}
	if len(devices) > 0 {
		usable = true
		t.ok("devices", strings.Join(devices, ", "))
	}
	mapped := d.mounts(func(_ string, options []string) bool {
		return slices.ContainsFunc(options, func(o string) bool {
			return o == "dax" || o == "dax=always" || o == "dax=inode"
		})
	})
	switch {
	case len(mapped) > 0:
		t.ok("dax mounts", strings.Join(mapped, ", "))
	case len(devices) > 0:
		t.warn("dax mounts", "none",
			"mkfs.ext4 /dev/pmem0 && mount -o dax /dev/pmem0 /mnt/pmem; then 'farkv node --file /mnt/pmem/farkv'")
	}
	if !usable {
		t.missing("persistent memory", "none", "to try without: the kernel's memmap=4G!12G takes main memory for it")
	}
}

// ipmctl asks the tool that reads the DIMMs' counters.
func (d *Examination) ipmctl(ctx context.Context, t *Topic) {
	out, err := d.Program(ctx, "ipmctl", "show", "-dimm")
	first, _, _ := strings.Cut(out, "\n")
	switch {
	case errors.Is(err, exec.ErrNotFound):
		t.missing("ipmctl", "not on the PATH",
			"apt-get install ipmctl, where there are Optane DIMMs: it reads how much is written to their media")
	case err != nil && strings.Contains(out, "No PMem modules"):
		t.missing("ipmctl", "is there, and finds no DIMMs", "")
	case err != nil:
		if first != "" {
			first = ": " + first
		}
		t.missing("ipmctl", fmt.Sprintf("does not answer: %v%s", err, first),
			"it needs root, and the ndctl library of its version")
	default:
		t.ok("ipmctl", "answers")
	}
}
