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

	"github.com/farkv/farkv/node/membership"
)

// Timeout bounds each call to an agent. Two kinds of calls may take longer: blocking queries, by
// the time that they wait for, and calls of a process with Patience. An agent that is stopped must
// not hang its callers; a healthy one answers in milliseconds.
const Timeout = time.Second

// Agent is a connection to one Consul agent. It is safe for concurrent use.
type Agent struct {
	address string
	// Bound of a call.
	timeout time.Duration
	// For how long a blocking query waits for a change.
	wait time.Duration
	// The least time from one blocking query to the next.
	pace      time.Duration
	client    *api.Client
	transport *http.Transport
}

// Dial returns the agent at HOST:PORT. Token, TLS, namespace and partition come from Consul's usual
// environment variables (CONSUL_HTTP_TOKEN, CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_SSL, CONSUL_CACERT,
// CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY, CONSUL_NAMESPACE ...), but not the address. Dial sends
// nothing: the first call finds out whether the agent is there. Errors wrap ErrAddress, or say what
// is wrong with the environment.
func Dial(address string) (*Agent, error) {
	if err := checkAgent(address); err != nil {
		return nil, err
	}
	config := api.DefaultConfig()
	config.Address = address
	// An agent allows each machine 200 connections (limits.http_max_conns_per_client). A process
	// holds those of its watches and heartbeats, and few others.
	config.Transport.MaxIdleConnsPerHost = 1
	config.Transport.IdleConnTimeout = 2 * time.Second
	client, err := api.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("consul %s: see the environment's CONSUL_ variables: %w", address, err)
	}
	return &Agent{address: address, timeout: Timeout, wait: 10 * time.Second, pace: time.Second,
		client: client, transport: config.Transport}, nil
}

// Close drops idle connections. Watches and registrations of a have ended.
func (a *Agent) Close() { a.transport.CloseIdleConnections() }

// bound returns the context of one call. The caller cancels it.
func (a *Agent) bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), a.timeout)
}

// consistent returns the options of a read that must not be stale.
func consistent(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

// ask makes a query. It fails if the answer has no index: then it is not from a Consul agent, which
// sends one even with a 404.
func (a *Agent) ask(query func(o *api.QueryOptions) (*api.QueryMeta, error)) error {
	return a.call(true, func(ctx context.Context) error {
		meta, err := query(consistent(ctx))
		if err == nil {
			err = indexed(meta)
		}
		return err
	})
}

// indexed returns an error if an answer has no index.
func indexed(meta *api.QueryMeta) error {
	if meta.LastIndex == 0 {
		return errNoConsul
	}
	return nil
}

var errNoConsul = errors.New("what answers there is no Consul agent (no X-Consul-Index)")

// failed returns an error that says which agent could not do what. It wraps
// membership.ErrUnreachable, also with fs.ErrPermission when Consul's access control refused: an
// operator can repair that, and what is hidden may exist.
func (a *Agent) failed(err error, format string, args ...any) error {
	return fmt.Errorf("consul %s: %s: %w: %w", a.address, fmt.Sprintf(format, args...), membership.ErrUnreachable,
		a.cause(err))
}

// cause returns why a call failed, without the address.
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

// denied reports whether Consul's access control refused. The error of a transaction has only a
// text, and no status code.
func denied(err error) bool {
	var status api.StatusError
	if errors.As(err, &status) {
		return status.Code == http.StatusForbidden || status.Code == http.StatusUnauthorized
	}
	return strings.Contains(err.Error(), "Permission denied") || strings.Contains(err.Error(), "ACL not found")
}
