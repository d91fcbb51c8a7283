package etcd_test

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/kvlane/kvlane/internal/etcdtest"
	"github.com/kvlane/kvlane/metadata/etcd"
)

// holdWatches returns an option with which streams of watches begin when release is called.
func holdWatches() (hold grpc.DialOption, release func()) {
	released := make(chan struct{})
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		if strings.HasSuffix(method, "/Watch") {
			select {
			case <-released:
			case <-ctx.Done():
			}
		}
		return next(ctx, d, cc, method, o...)
	}), func() { close(released) }
}

// holdPut returns an option with which the answer to the first put is held. Put receives a value
// after etcd has answered, and the answer is delivered when put receives another one.
func holdPut() (hold grpc.DialOption, put chan struct{}) {
	put = make(chan struct{})
	first := make(chan struct{}, 1)
	first <- struct{}{}
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, answer any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
		err := next(ctx, method, request, answer, cc, o...)
		if strings.HasSuffix(method, "/Put") && err == nil {
			select {
			case <-first:
				put <- struct{}{}
				select {
				case <-put:
				case <-ctx.Done():
					return ctx.Err()
				}
			default:
			}
		}
		return err
	}), put
}

// A key that is deleted before its watch begins is put again, also if etcd has deleted that
// revision.
func TestAKeyThatIsDeletedBeforeItsWatch(t *testing.T) {
	s := etcdtest.Start(t, etcdtest.Versions[1])
	client := raw(t, s.Addr, "", "")
	for name, compact := range map[string]bool{"kept": false, "compacted": true} {
		t.Run(name, func(t *testing.T) {
			hold, release := holdWatches()
			r := register(t, etcd.WithDial(options(s.Addr), hold), member(1))
			_, err := client.Delete(t.Context(), "/kvlane/test/members/m1")
			must(t, err)
			if compact {
				p, err := client.Put(t.Context(), "/other", "")
				must(t, err)
				_, err = client.Compact(t.Context(), p.Header.Revision)
				must(t, err)
			}
			release()
			becomes(t, open(t, options(s.Addr)), "m1")
			waitFor(t, "no error", func() bool { return r.Err() == nil })
		})
	}
}

// A member that drains while its first put is in progress is registered as draining.
func TestDrainWhileRegistering(t *testing.T) {
	s := etcdtest.Start(t, etcdtest.Versions[1])
	hold, put := holdPut()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // do not wait for the first attempt
	r, err := etcd.Register(ctx, etcd.WithDial(options(s.Addr), hold), member(1))
	must(t, err)
	defer func() { must(t, r.Close(t.Context())) }()
	<-put
	if r.Err() == nil {
		t.Error("no error before the first attempt has ended")
	}
	drained := make(chan error)
	go func() { drained <- r.Drain(t.Context()) }()
	time.Sleep(10 * time.Millisecond) // it waits for the put
	put <- struct{}{}
	must(t, <-drained)
	m := open(t, options(s.Addr))
	becomes(t, m, "m1-")
	// An operator's mark does not replace that of the member when it registers again.
	must(t, etcd.MarkDraining(t.Context(), options(s.Addr), "m1", false))
	becomes(t, m, "m1")
	_, err = raw(t, s.Addr, "", "").Delete(t.Context(), "/kvlane/test/members/m1")
	must(t, err)
	becomes(t, m, "m1-")
}

// A member that closes while its first put is in progress leaves at once.
func TestCloseWhileRegistering(t *testing.T) {
	s := etcdtest.Start(t, etcdtest.Versions[1])
	hold, put := holdPut()
	o := options(s.Addr)
	o.Lease, o.Within = time.Hour, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // do not wait for the first attempt
	r, err := etcd.Register(ctx, etcd.WithDial(o, hold), member(1))
	must(t, err)
	<-put
	must(t, r.Close(t.Context()))
	all, err := raw(t, s.Addr, "", "").Get(t.Context(), "/kvlane/", clientv3.WithPrefix())
	must(t, err)
	if len(all.Kvs) != 0 {
		t.Errorf("the member has left, and its key is %s", all.Kvs[0].Key)
	}
}

// A member whose lease has ended, which it does not know yet, has left.
func TestCloseWithoutALease(t *testing.T) {
	s := etcdtest.Start(t, etcdtest.Versions[1])
	hold, _ := holdWatches()
	o := options(s.Addr)
	o.Lease = time.Hour
	r := register(t, etcd.WithDial(o, hold), member(1))
	client := raw(t, s.Addr, "", "")
	key, err := client.Get(t.Context(), "/kvlane/test/members/m1")
	must(t, err)
	_, err = client.Revoke(t.Context(), clientv3.LeaseID(key.Kvs[0].Lease))
	must(t, err)
	must(t, r.Close(t.Context()))
}

// Close ends a connection in progress: clients with a password connect when they are opened.
func TestCloseWhileConnecting(t *testing.T) {
	connecting := make(chan struct{})
	dial := grpc.WithChainUnaryInterceptor(func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		connecting <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	o := etcd.WithDial(options("127.0.0.1:1"), dial)
	o.User, o.Password, o.Within = "u", "p", time.Hour
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := etcd.Register(ended, o, member(1))
	must(t, err)
	<-connecting
	must(t, r.Close(ended))
	opening, cancel := context.WithCancel(t.Context())
	go func() {
		<-connecting
		cancel()
	}()
	m, err := etcd.Open(opening, o)
	must(t, err)
	<-connecting // in the background
	must(t, m.Close())
}
