package simulate

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads"
)

// Figures that are not sim.Hardware's: how long a verb to a dead node takes to fail, and those of
// persistent memory, where nodes have it.
const (
	nodeTimeout = "NodeTimeout"
	ofPMem      = "PMem."
)

// change changes figures of a profile: texts such as AtomicWordMops=100 or Doorbell=100ns, by the
// names of sim.Hardware's fields, and PMem.Combining=30, by those of pmem.DeviceConfig's.
func change(o *sim.Options, texts []string) error {
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		if err := set(field(o, name), value); err != nil {
			return workloads.Usagef("hardware %q: want name=value, such as LinkGbps=200 or Doorbell=100ns; names "+
				"are %s", text, strings.Join(figures(o), ", "))
		}
	}
	return nil
}

// slow makes machines, and the network between them, slower by a factor: it stretches all times of
// the hardware. Servers accept what was appended however long it was in flight, because the bound
// of the paper (4.3) is not stretched.
func slow(o *sim.Options, times int) {
	if times <= 1 {
		return
	}
	h := o.Hardware
	for _, rate := range []*float64{&h.LinkGbps, &h.ClientMops, &h.NodeMops, &h.PersistMops, &h.PCIeGbps,
		&h.AtomicMops, &h.AtomicWordMops, &h.DeviceMops, &h.DeviceWordMops} {
		*rate /= float64(times)
	}
	for _, took := range []*time.Duration{&h.Propagation, &h.RetransmitTimeout, &h.PCIe, &h.Doorbell, &h.Verb, &h.Poll,
		&h.NTStore, &h.ServiceTime, &h.CallLatency, &h.PeerTime} {
		*took *= time.Duration(times)
	}
	o.CountRings = true
}

// field returns the figure of a name; the zero Value when there is none.
func field(o *sim.Options, name string) reflect.Value {
	if name == nodeTimeout {
		return reflect.ValueOf(&o.NodeTimeout).Elem()
	}
	if own, ok := strings.CutPrefix(name, ofPMem); ok && o.PMem != nil {
		return reflect.ValueOf(o.PMem).Elem().FieldByName(own)
	}
	return reflect.ValueOf(o.Hardware).Elem().FieldByName(name)
}

func set(v reflect.Value, text string) (err error) {
	if !v.IsValid() {
		return fmt.Errorf("no such figure")
	}
	switch old := v.Interface().(type) {
	case time.Duration:
		old, err = time.ParseDuration(text)
		v.SetInt(int64(max(old, 0)))
	case float64:
		old, err = strconv.ParseFloat(text, 64)
		v.SetFloat(max(old, 0))
	case int:
		old, err = strconv.Atoi(text)
		v.SetInt(int64(max(old, 0)))
	case uint64:
		old, err = strconv.ParseUint(text, 10, 64)
		v.SetUint(old)
	case bool:
		old, err = strconv.ParseBool(text)
		v.SetBool(old)
	}
	return err
}

// figures lists the names of all figures.
func figures(o *sim.Options) []string {
	names := []string{nodeTimeout}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[sim.Hardware]()) {
		names = append(names, f.Name)
	}
	if o.PMem != nil {
		for _, f := range reflect.VisibleFields(reflect.TypeFor[pmem.DeviceConfig]()) {
			names = append(names, ofPMem+f.Name)
		}
	}
	return names
}
