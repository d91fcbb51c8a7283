package etcd

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
)

// Store keeps values in etcd, below the cluster's prefix. A value with a time to live has a lease of
// its own. etcd counts in whole seconds, and a value may expire some seconds late.
type Store struct {
	o Options
	c *connection
}

var _ metadata.Store = (*Store)(nil)

// OpenStore returns a store. It does not connect. It returns ErrInvalid for wrong options.
func OpenStore(o Options) (*Store, error) {
	c, err := newConnection(o)
	if err != nil {
		return nil, err
	}
	return &Store{c.o, c}, nil
}

// do calls f with the client, the key in etcd, and a context that ends within Options.Within.
func (s *Store) do(ctx context.Context, what, key string, f func(context.Context, *clientv3.Client, string) error) error {
	if key == "" || len(key) > metadata.MaxKeyBytes {
		return fmt.Errorf("%s metadata %.32q: the key must have 1 to %d bytes: %w", what, key, metadata.MaxKeyBytes, errdefs.ErrInvalid)
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Within)
	defer cancel()
	client, err := s.c.get(ctx)
	if err == nil {
		err = f(ctx, client, "/kvlane/"+s.o.Cluster+"/metadata/"+key)
	}
	if err != nil {
		return s.o.failed(fmt.Sprintf("%s metadata %q in", what, key), err)
	}
	return nil
}

// Put implements metadata.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if len(value) > metadata.MaxValueBytes || ttl < 0 {
		return fmt.Errorf("put metadata %.32q of %d bytes for %v: at most %d bytes: %w", key, len(value), ttl, metadata.MaxValueBytes, errdefs.ErrInvalid)
	}
	return s.do(ctx, "put", key, func(ctx context.Context, c *clientv3.Client, key string) error {
		var o []clientv3.OpOption
		if ttl > 0 { // the lease of an earlier value ends by itself
			lease, err := c.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
			if err != nil {
				return err
			}
			o = append(o, clientv3.WithLease(lease.ID))
		}
		_, err := c.Put(ctx, key, string(value), o...)
		return err
	})
}

// Get implements metadata.Store.
func (s *Store) Get(ctx context.Context, key string) (value []byte, err error) {
	err = s.do(ctx, "get", key, func(ctx context.Context, c *clientv3.Client, key string) error {
		r, err := c.Get(ctx, key)
		if err == nil && len(r.Kvs) == 0 {
			err = errdefs.ErrNotFound
		}
		if err == nil {
			value = r.Kvs[0].Value
		}
		return err
	})
	return value, err
}

// Delete implements metadata.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.do(ctx, "delete", key, func(ctx context.Context, c *clientv3.Client, key string) error {
		_, err := c.Delete(ctx, key)
		return err
	})
}

// Close disconnects.
func (s *Store) Close() error { return s.c.close() }
