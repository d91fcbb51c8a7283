package rpc_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
)

// A server accepts a connection and reads nothing. A call with more bytes than the connection holds
// ends at its deadline, also the first one with the credential. Its attachment is released when the
// client is closed.
func TestDeadlineOfALongRequest(t *testing.T) {
	l := listen(t, "tcp", "127.0.0.1:0")
	defer func() { must(t, l.Close()) }()
	testkit.Grow(t, 100*time.Millisecond, func(d time.Duration) error {
		client, err := rpc.NewClient(l.Addr().String(), rpc.ClientOptions{Credential: []byte("secret")})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		freed := make(chan struct{})
		long := make([]byte, 60<<20)
		attachment := new(chain.Chain)
		attachment.AppendBlock(chain.NewHost(long, func() { close(freed) }), int64(len(long)))
		began := time.Now()
		_, err = echoCall(ctx, client, "hello", rpc.WithAttachment(attachment))
		if rpc.CodeOf(err) != rpc.TimedOut || time.Since(began) > d+10*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		unsent := errors.Is(err, rpc.ErrNotSent) // the machine was busy
		select {
		case <-freed:
			if !unsent {
				t.Error("the attachment is released while it is written")
			}
		default:
		}
		must(t, client.Close())
		<-freed
		if unsent {
			return err
		}
		return nil
	})
}
