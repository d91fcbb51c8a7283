package cluster

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc"
)

// Policy chooses the servers of calls. All policies follow the weights of the members.
type Policy uint8

// The policies.
const (
	// RoundRobin uses the servers in turn. Of calls in a row each server gets its share of the
	// weights, evenly spread.
	RoundRobin Policy = iota
	// LeastLoaded uses the server with the fewest calls in progress for its weight.
	LeastLoaded
	// ConsistentHash uses the same server for the same key (WithKey). If a server is ejected or
	// removed, only its keys move, to other servers by their weights.
	ConsistentHash
)

// Options are the options of a Client. Zero values are the defaults.
type Options struct {
	Policy Policy
	// Client are the options of the connections to each server. Their backoff is not used: MinEject
	// and MaxEject take its place.
	Client rpc.ClientOptions
	// MaxAttempts limits the attempts of a call. Attempts at further servers that cannot be
	// connected to do not count. Default: 3.
	MaxAttempts int
	// RetryShare limits repeated and backup requests to a share of the calls, after a burst of 10.
	// Repeating a call that was not sent, or that a server in shutdown has refused, is not limited.
	// Default: 0.1.
	RetryShare float64
	// Idempotent reports whether a method, SERVICE/METHOD, may run twice for one call. nil: no
	// method may.
	Idempotent func(method string) bool
	// BackupAfter is the time without a response after which a call of an idempotent method is also
	// sent to a second server. The first response counts, and the other attempt is cancelled. 0:
	// there are no backup requests.
	BackupAfter time.Duration
	// Check checks a server through its client, at every CheckInterval, which also is its time
	// limit, and before an ejected server is used again. An error ejects the server. nil: a new
	// connection to an ejected server must succeed, and if it was not ejected for its connection,
	// one call too. Default of CheckInterval: 5 s.
	Check         func(ctx context.Context, c *rpc.Client) error
	CheckInterval time.Duration
	// Failures is the number of failed calls in a row that eject a server. Default: 3.
	Failures int
	// MinEject is the time for which a server is first ejected. Each failed check or call
	// afterwards doubles it, up to MaxEject. Defaults: 100 ms and 5 s.
	MinEject, MaxEject time.Duration
}

const (
	retryBurst    = 10
	retryDelay    = 5 * time.Millisecond // before a call returns to a server; doubles up to
	maxRetryDelay = time.Second
)

func (o *Options) setDefaults() error {
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 3)
	o.RetryShare = cmp.Or(o.RetryShare, 0.1)
	o.CheckInterval = cmp.Or(o.CheckInterval, 5*time.Second)
	o.Failures = cmp.Or(o.Failures, 3)
	o.MinEject = cmp.Or(o.MinEject, 100*time.Millisecond)
	o.MaxEject = max(cmp.Or(o.MaxEject, 5*time.Second), o.MinEject)
	o.Client.MinBackoff, o.Client.MaxBackoff = 1, 1 // the breaker delays attempts
	if o.Policy > ConsistentHash {
		return fmt.Errorf("make rpc cluster: policy %d: %w", o.Policy, errdefs.ErrInvalid)
	}
	if min(o.MaxAttempts, o.Failures) < 0 || min(o.BackupAfter, o.CheckInterval, o.MinEject, o.MaxEject) < 0 || !(o.RetryShare >= 0 && o.RetryShare <= 1) {
		return fmt.Errorf("make rpc cluster: a number is negative, or a retry share of %g is not in 0 to 1: %w", o.RetryShare, errdefs.ErrInvalid)
	}
	if o.BackupAfter > 0 && o.Idempotent == nil {
		return fmt.Errorf("make rpc cluster: backup requests without idempotent methods: %w", errdefs.ErrInvalid)
	}
	return nil
}

type keyContext struct{}

// WithKey returns a context whose calls have a key for the policy ConsistentHash.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyContext{}, key)
}
