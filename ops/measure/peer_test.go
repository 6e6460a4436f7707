package measure

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestStartRedis: a server that ends at once, as one that finds its port taken, is started again on
// another port, a bounded number of times.
func TestStartRedis(t *testing.T) {
	if port := os.Getenv("FARKV_REDIS_PORT"); port != "" { // this process is a server
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		for err == nil {
			_, err = l.Accept()
		}
		t.Fatal(err)
	}
	for ends, starts := range map[int]bool{0: true, redisTries - 1: true, redisTries: false} {
		folder := t.TempDir()
		for i := range ends {
			if err := os.Mkdir(filepath.Join(folder, fmt.Sprint(i)), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		// It takes a folder for each end.
		program := filepath.Join(folder, "redis-server")
		script := fmt.Sprintf("#!/bin/sh\nfor i in %s/*/; do rmdir $i 2>/dev/null && exit 1; done\n"+
			"FARKV_REDIS_PORT=$4 exec %s -test.run '^TestStartRedis$'\n", folder, os.Args[0])
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		s, err := startRedis(t.Context(), program)
		if (err == nil) != starts || err != nil && !errors.Is(err, errEnded) {
			t.Errorf("ends %d times: %v", ends, err)
		}
		if s == nil {
			continue
		}
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.folder); !os.IsNotExist(err) {
			t.Errorf("its folder: %v", err)
		}
	}
}
