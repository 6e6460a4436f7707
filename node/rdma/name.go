package rdma

import "regexp"

// PoolNames says which names a pool may have, on every fabric: with a prefix they are file names.
const PoolNames = "1 to 200 letters, digits, '.', '_' or '-', beginning with none of '.' and '-'"

var poolName = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,199}$`)

// IsPoolName reports whether a pool may have a name: see PoolNames.
func IsPoolName(name string) bool { return poolName.MatchString(name) }
