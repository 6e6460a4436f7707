package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops"
)

// logged is what a node has logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestServers: memory nodes with a token and mutual TLS serve the store of their pool, and reach
// each other so. Each pool that they come to have is served anew. A node that ends ends its server
// first, which is no client that it waits for.
func TestServers(t *testing.T) {
	defer goleak.VerifyNone(t)
	a := newAuthority(t)
	a.issue(t, "node", a, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(strings.Repeat("secret", 8)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := smallNode()
	c.Memory, c.TokenFile = 64<<20, token
	c.TLSCert, c.TLSKey, c.TLSCA = a.file("node.pem"), a.file("node.key"), a.file("ca.pem")
	var all []string
	var ends []func() error
	var first logged
	for i := range 3 {
		if c.Log = nil; i == 0 {
			c.Log = slog.New(slog.NewTextHandler(&first, nil))
		}
		s, end := serving(t, c)
		all, ends = append(all, s.Address), append(ends, end)
	}
	t.Setenv(fabrics.EnvToken, token)
	t.Setenv(fabrics.EnvCA, a.file("ca.pem"))
	t.Setenv(fabrics.EnvCert, a.file("node.pem"))
	t.Setenv(fabrics.EnvKey, a.file("node.key"))
	addr := "tcp:" + strings.Join(all, ",")
	for round := range 2 {
		if round > 0 {
			if _, err := ops.Down(addr, false, false); err != nil {
				t.Error(err)
			}
		}
		p := stores.Params{Nodes: 3, Records: 1000, Timeout: time.Minute}
		made, err := ops.Up(addr, "rowan", p)
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range made.Nodes {
			if n.Server == nil || n.Server.Store != "rowan" || n.Server.Problem != "" || len(n.Server.Counts) == 0 {
				t.Errorf("node %d tells of its server %+v", i, n.Server)
			}
		}
		uses := func(c ops.Client) bool { return c.Alive && !c.Serves() }
		if len(made.Clients) == 0 || slices.ContainsFunc(made.Clients, uses) {
			t.Errorf("not only servers live: %+v", made.Clients)
		}
		serves(t, addr)
	}
	for _, end := range ends {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	text := first.String()
	if n := strings.Count(text, `msg="serves the pool's store"`); n != 2 {
		t.Errorf("the first node served %d pools, want 2", n)
	}
	if strings.Contains(text, "cut off") || strings.Contains(text, "level=ERROR") {
		t.Errorf("the first node did not end in order:\n%s", text)
	}
}

// serves writes and reads in a new pool.
func serves(t *testing.T, addr string) {
	t.Helper()
	db, err := stores.OpenDB(addr, stores.DBOptions{Workers: 2, NoKeeper: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := db.Get(ctx, []byte("key")); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a new pool: %v", err)
	}
	if err := db.Put(ctx, []byte("key"), []byte("value")); err != nil {
		t.Error(err)
	}
	if v, err := db.Get(ctx, []byte("key")); string(v) != "value" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
