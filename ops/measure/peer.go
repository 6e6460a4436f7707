package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/ycsb"
)

// peer measures another system, where it is installed, on the same records and the same workload.
func (b *Bench) peer(ctx context.Context, name string, c runner.Config, p *properties.Properties,
	t *Comparison) (err error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skipped[name] = "there is no redis-server on the PATH"
		b.Say("%s: skipped: %s", name, t.Skipped[name])
		return nil
	}
	server, err := startRedis(ctx, program)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	if err := cmp.Or(ycsb.Set(p, "redis.addr", server.addr), ycsb.Set(p, "command", drivers.Load)); err != nil {
		return err
	}
	db, err := quietly(func() (drivers.Database, error) { return drivers.Create(name, p) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	row := Row{Name: name}
	c.Name, c.Database, c.MaxTime = name, db, peerTime
	b.Say("%s: on %s, a run of %v at most", name, server.addr, peerTime)
	if err := b.loadAndRun(ctx, c, &row); err != nil {
		return err
	}
	t.Rows = append(t.Rows, row)
	return nil
}

// quietly runs f while standard output leads nowhere: upstream's driver writes to it as it opens.
func quietly[T any](f func() (T, error)) (T, error) {
	nowhere, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return *new(T), err
	}
	defer nowhere.Close()
	stdout := os.Stdout
	os.Stdout = nowhere
	defer func() { os.Stdout = stdout }()
	return f()
}

// redisServer is one of our own, which keeps nothing, on a port of the loopback.
type redisServer struct {
	addr   string
	folder string
	cmd    *exec.Cmd
	ended  chan struct{} // closed when its process has ended
	err    error         // how; behind ended
}

const (
	// patience bounds the start and the end of a server.
	patience = 10 * time.Second
	// redisTries bounds how many servers are started: a port may be another process's before it is
	// a server's, which ends then. Several times in a row that is another fault of the server.
	redisTries = 5
)

// errEnded is wrapped when a server's process ended by itself.
var errEnded = errors.New("it ended by itself")

func startRedis(ctx context.Context, program string) (s *redisServer, err error) {
	for range redisTries {
		if s, err = tryRedis(ctx, program); !errors.Is(err, errEnded) {
			return s, err
		}
	}
	return nil, err
}

// tryRedis starts a server on one port. The error wraps errEnded when the server ended at once.
func tryRedis(ctx context.Context, program string) (*redisServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "farkv-redis-")
	if err != nil {
		return nil, err
	}
	s := &redisServer{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), folder: folder,
		ended: make(chan struct{})}
	s.cmd = exec.Command(program, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", folder,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning")
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	for until := time.Now().Add(patience); ; {
		conn, err := net.DialTimeout("tcp", s.addr, time.Second)
		if err == nil {
			err = conn.Close()
		}
		switch {
		case s.over(): // whatever answers there is another process
			return nil, fmt.Errorf("start %s: %w", program, s.stop())
		case err == nil:
			return s, nil
		case ctx.Err() != nil || time.Now().After(until):
			return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), ctx.Err(), s.stop())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// over reports whether the server's process has ended.
func (s *redisServer) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// freePort returns a port that had no listener a moment ago. Another process may have taken it
// since.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// stop ends the server, by its process, and removes its folder. The error wraps errEnded when the
// process had ended before: what was measured since is not the server's.
func (s *redisServer) stop() error {
	if s.over() {
		return errors.Join(fmt.Errorf("%w: %v", errEnded, s.err), os.RemoveAll(s.folder))
	}
	t := time.AfterFunc(patience, func() { s.cmd.Process.Kill() })
	defer t.Stop()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.ended
	err := s.err
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil // it was told to
	}
	return errors.Join(err, os.RemoveAll(s.folder))
}
