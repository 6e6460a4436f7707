//go:build !ibverbs || !linux

package ibverbs

import "net"

// Built reports whether this program was built with libibverbs.
const Built = false

func openAdapter(Choice, net.IP) (adapter, error) { return nil, ErrNotBuilt }

func probe() ([]Info, error) { return nil, ErrNotBuilt }
