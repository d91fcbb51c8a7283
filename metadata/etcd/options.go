package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/kvlane/kvlane/errdefs"
)

// Scheme begins URLs of clusters: etcd://HOST:PORT,HOST:PORT/CLUSTER.
const Scheme = "etcd"

// Defaults of Options.
const (
	DefaultLease  = 10 * time.Second
	DefaultResync = 30 * time.Second
	DefaultWithin = 5 * time.Second
)

const (
	minLease   = time.Second
	firstPause = 100 * time.Millisecond // after a failure; doubles
	maxPause   = 2 * time.Second
)

// connects bounds the time between attempts to connect, which doubles from firstPause as well. The
// default of gRPC is two minutes, and 20 seconds for one attempt.
var connects = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: 5 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// Options select a cluster in etcd. Zero values are the defaults.
type Options struct {
	// Endpoints are the addresses of etcd, HOST:PORT. Required.
	Endpoints []string
	// Cluster is the name of the group, of letters, digits, and - _ . between them. Required.
	Cluster string
	// TLS enables TLS. Nil: plain TCP.
	TLS *tls.Config
	// User and Password are the credentials. Empty: none.
	User, Password string
	// Lease is the time after which a member that is killed leaves, in whole seconds. Default
	// DefaultLease.
	Lease time.Duration
	// Resync is the time after which the list is read again. Default DefaultResync.
	Resync time.Duration
	// Within bounds each request to etcd. Default DefaultWithin.
	Within time.Duration

	dial []grpc.DialOption // set by tests
}

// ParseURL returns options with the endpoints and the cluster of a URL
// etcd://HOST:PORT,HOST:PORT/CLUSTER. It returns ErrInvalid for another text.
func ParseURL(text string) (Options, error) {
	rest, ok := strings.CutPrefix(text, Scheme+"://")
	hosts, cluster, named := strings.Cut(rest, "/")
	o := Options{Endpoints: strings.Split(hosts, ","), Cluster: cluster}
	if !ok || !named {
		return Options{}, fmt.Errorf("cluster %q: must be %s://HOST:PORT,.../NAME: %w", text, Scheme, errdefs.ErrInvalid)
	}
	return o, o.Validate()
}

// Validate returns ErrInvalid for options that no cluster has.
func (o *Options) Validate() error {
	for _, e := range o.Endpoints {
		if host, port, err := net.SplitHostPort(e); err != nil || host == "" || port == "" {
			return fmt.Errorf("etcd at %q: must be HOST:PORT: %w", e, errdefs.ErrInvalid)
		}
	}
	switch {
	case len(o.Endpoints) == 0:
		return fmt.Errorf("cluster %q in etcd at no address: %w", o.Cluster, errdefs.ErrInvalid)
	case !validName(o.Cluster):
		return fmt.Errorf("cluster %q: the name must have 1 to 128 letters, digits, and - _ . : [ ]: %w", o.Cluster, errdefs.ErrInvalid)
	case o.Lease < 0 || o.Lease > 0 && o.Lease < minLease || o.Resync < 0 || o.Within < 0:
		return fmt.Errorf("cluster %q: lease %v, resync %v, within %v: %w", o.Cluster, o.Lease, o.Resync, o.Within, errdefs.ErrInvalid)
	case (o.User == "") != (o.Password == ""):
		return fmt.Errorf("cluster %q: a user needs a password, and a password a user: %w", o.Cluster, errdefs.ErrInvalid)
	}
	return nil
}

// validName reports whether s can be part of a key.
func validName(s string) bool {
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("-_.:[]", r):
		default:
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// prefix begins the keys of members.
func (o *Options) prefix() string { return "/kvlane/" + o.Cluster + "/members/" }

// connection opens a client at its first use. A client with a password connects when it is opened,
// and fails while etcd is down.
type connection struct {
	o      Options
	ctx    context.Context // of the client; ends with close
	cancel context.CancelFunc

	mu     sync.Mutex
	client *clientv3.Client // nil: not open
}

// newConnection returns a connection for options, which get their defaults.
func newConnection(o Options) (*connection, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Lease, o.Resync, o.Within = cmp.Or(o.Lease, DefaultLease), cmp.Or(o.Resync, DefaultResync), cmp.Or(o.Within, DefaultWithin)
	c := &connection{o: o}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// get returns the client. The first call opens it, and ends with ctx or after Options.Within. Others
// wait meanwhile.
func (c *connection) get(ctx context.Context) (*clientv3.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client != nil {
		return c.client, nil
	}
	ofClient, cancel := context.WithCancel(c.ctx)
	stop := context.AfterFunc(ctx, cancel)
	client, err := c.o.open(ofClient)
	if err != nil {
		cancel()
		return nil, err
	}
	if !stop() { // cancel may come later
		_ = client.Close() // it was not used
		return nil, c.o.failed("connect to", ctx.Err())
	}
	c.client = client
	return client, nil
}

// close closes the client.
func (c *connection) close() error {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil {
		return nil
	}
	if err := c.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return c.o.failed("disconnect from", err)
	}
	return nil
}

func (o *Options) open(ctx context.Context) (*clientv3.Client, error) {
	scheme := "http://"
	if o.TLS != nil {
		scheme = "https://"
	}
	c := clientv3.Config{
		Context: ctx, TLS: o.TLS, Username: o.User, Password: o.Password, Logger: zap.NewNop(),
		DialTimeout: o.Within, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second, BackoffWaitBetween: firstPause,
		DialOptions: append([]grpc.DialOption{grpc.WithConnectParams(connects)}, o.dial...),
	}
	for _, e := range o.Endpoints {
		c.Endpoints = append(c.Endpoints, scheme+e)
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, o.failed("connect to", err)
	}
	return client, nil
}

// failed returns an error with the cluster.
func (o *Options) failed(what string, err error) error {
	return fmt.Errorf("%s etcd %s for cluster %s: %w", what, strings.Join(o.Endpoints, ","), o.Cluster, err)
}
