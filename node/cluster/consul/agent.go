package consul

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/farkv/farkv/node/rdma/board"
)

// Timeout bounds every call to an agent, blocking queries apart, which last as much longer as they
// wait for, and calls of a process with Patience. An agent that stopped must not hang its callers;
// one that is well answers in milliseconds.
const Timeout = time.Second

// Agent is a connection to one Consul agent. It is safe for concurrent use.
type Agent struct {
	address   string
	timeout   time.Duration // of a call
	wait      time.Duration // of a blocking query
	pace      time.Duration // from one blocking query to the next
	client    *api.Client
	transport *http.Transport
}

// Dial returns the agent at HOST:PORT. Token, TLS, namespace and partition come from Consul's usual
// environment (CONSUL_HTTP_TOKEN, CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_SSL, CONSUL_CACERT,
// CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY, CONSUL_NAMESPACE ...), all but the address. It sends
// nothing: an agent that is not there is found by the first call. Errors wrap ErrAddress, or tell
// what is wrong with the environment.
func Dial(address string) (*Agent, error) {
	if err := checkAgent(address); err != nil {
		return nil, err
	}
	config := api.DefaultConfig()
	config.Address = address
	// An agent gives each machine 200 connections (limits.http_max_conns_per_client): a process keeps
	// what its watches and its beats hold, and little more.
	config.Transport.MaxIdleConnsPerHost = 1
	config.Transport.IdleConnTimeout = 2 * time.Second
	client, err := api.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("consul %s: see the environment's CONSUL_ variables: %w", address, err)
	}
	return &Agent{address: address, timeout: Timeout, wait: 10 * time.Second, pace: time.Second,
		client: client, transport: config.Transport}, nil
}

// Close drops idle connections. What was opened from a must have ended.
func (a *Agent) Close() { a.transport.CloseIdleConnections() }

// bound returns the context of one call.
func (a *Agent) bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), a.timeout)
}

// consistent are the options of a read that must not be stale.
func consistent(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

// ask makes a query, which an answer that no Consul agent gives fails: theirs have an index, a 404
// too.
func (a *Agent) ask(query func(o *api.QueryOptions) (*api.QueryMeta, error)) error {
	return a.call(true, func(ctx context.Context) error {
		meta, err := query(consistent(ctx))
		if err == nil {
			err = indexed(meta)
		}
		return err
	})
}

func indexed(meta *api.QueryMeta) error {
	if meta.LastIndex == 0 {
		return errNoConsul
	}
	return nil
}

var errNoConsul = errors.New("what answers there is no Consul agent (no X-Consul-Index)")

// failed says which agent could not do what. It wraps board.ErrUnreachable, and fs.ErrPermission
// when Consul's access control refused: that is mended from outside as well, and what it hides may
// be there.
func (a *Agent) failed(err error, format string, args ...any) error {
	return fmt.Errorf("consul %s: %s: %w: %w", a.address, fmt.Sprintf(format, args...), board.ErrUnreachable,
		a.cause(err))
}

// cause is why a call failed, in words of its own.
func (a *Agent) cause(err error) error {
	var transport *url.Error
	if errors.As(err, &transport) {
		err = transport.Err // the rest is the address in another form
	}
	var status api.StatusError
	switch answered := errors.As(err, &status); {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("it does not answer")
	case denied(err):
		return fmt.Errorf("%w: %w (CONSUL_HTTP_TOKEN names a token that may)", fs.ErrPermission, err)
	case answered && status.Code == http.StatusTooManyRequests:
		return fmt.Errorf("it answers 429: %s (its limits.http_max_conns_per_client counts all processes of a machine)",
			status.Body)
	case answered:
		return fmt.Errorf("it answers %d: %s", status.Code, status.Body)
	}
	return err
}

// denied reports whether Consul's access control refused. What transactions end in has the text,
// and no code.
func denied(err error) bool {
	var status api.StatusError
	if errors.As(err, &status) {
		return status.Code == http.StatusForbidden || status.Code == http.StatusUnauthorized
	}
	return strings.Contains(err.Error(), "Permission denied") || strings.Contains(err.Error(), "ACL not found")
}
