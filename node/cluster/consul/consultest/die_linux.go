package consultest

import "syscall"

// dieWithUs ends the agent with a test that is killed itself.
var dieWithUs = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
