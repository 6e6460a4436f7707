package consul

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8") // they wait for an agent more than they work
	goleak.VerifyTestMain(m)
}
