// Package killed has workers of many processes use one pool in shared memory while one process
// after the other is killed by SIGKILL, at a verb of an operation, and others take their places.
// What a worker has been told of its writes outlives its process, so that nothing can be lost, or
// appear, unseen.
package killed

import "os"

// env tells a test's program that it is one of the processes, as JSON of place.
const env = "FARKV_CHECK_KILLED"

// Child reports whether this program is one of the processes that are killed. Their pools and
// folders belong to the program that started them.
func Child() bool { return os.Getenv(env) != "" }
