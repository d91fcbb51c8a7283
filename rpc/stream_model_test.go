package rpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

// acceptServer starts a server whose handler passes the accepted streams to the test.
func acceptServer(t *testing.T) (addr string, accepted chan *rpc.Stream) {
	t.Helper()
	accepted = make(chan *rpc.Stream, 1)
	_, addr = serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(func(ctx context.Context, _ *echo.EchoRequest) (*echo.EchoResponse, error) {
		list, err := rpc.FromContext(ctx).AcceptStreams(rpc.StreamOptions{})
		if err != nil {
			return nil, err
		}
		accepted <- list[0]
		return &echo.EchoResponse{Message: proto.String("")}, nil
	})))
	return addr, accepted
}

// side uses one end of a stream at random: it sends numbered messages, receives, and finally
// closes. It returns the number of sent and of received messages.
func side(t *testing.T, s *rpc.Stream, seed uint64) (sent, received uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	ctx := t.Context()
	receive := func(ctx context.Context) bool {
		m, err := s.Receive(ctx)
		if errors.Is(err, io.EOF) || rpc.CodeOf(err) == rpc.TimedOut {
			return rpc.CodeOf(err) == rpc.TimedOut
		}
		if err != nil {
			t.Errorf("seed %d: receive: %v", seed, err)
			return false
		}
		defer m.Release()
		b, err := m.Bytes()
		if err != nil || len(b) < 8 || binary.LittleEndian.Uint64(b) != received {
			t.Errorf("seed %d: message of %d bytes, %v, not number %d", seed, len(b), err, received)
			return false
		}
		received++
		return true
	}
	for range 1 + rng.IntN(40) {
		if rng.IntN(3) > 0 {
			b := make([]byte, 8+rng.IntN(1<<rng.IntN(21)))
			binary.LittleEndian.PutUint64(b, sent)
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			err := s.Send(short, chain.OfBytes(b))
			cancel()
			if rpc.CodeOf(err) == rpc.TimedOut {
				continue // the peer has not consumed enough
			}
			if rpc.CodeOf(err) == rpc.Closed {
				break // closed by the peer
			}
			if err != nil {
				t.Errorf("seed %d: send: %v", seed, err)
				break
			}
			sent++
		} else {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			ok := receive(short)
			cancel()
			if !ok {
				break
			}
		}
		if rng.IntN(8) == 0 { // receive all messages, so that the peer's window opens
			for {
				short, cancel := context.WithTimeout(ctx, time.Millisecond)
				before := received
				receive(short)
				cancel()
				if received == before {
					break
				}
			}
		}
	}
	if seed%4 == 0 { // the peer closes first, after its messages
		for receive(ctx) {
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("seed %d: close: %v", seed, err)
	}
	return sent, received
}

// TestStreamModel uses both ends of streams at random. Each side must receive a prefix of the
// messages that the other side sent, in order. At the end no connection may have a stream.
func TestStreamModel(t *testing.T) {
	addr, accepted := acceptServer(t)
	client := newClient(t, addr, rpc.ClientOptions{})
	for seed := range uint64(150) {
		list, err := openStreams(t, client, "", 1)
		if err != nil {
			t.Fatal(err)
		}
		other := <-accepted
		var sent, received [2]uint64
		var group sync.WaitGroup
		group.Go(func() { sent[0], received[0] = side(t, list[0], 2*seed) })
		group.Go(func() { sent[1], received[1] = side(t, other, 2*seed+1) })
		group.Wait()
		if received[0] > sent[1] || received[1] > sent[0] {
			t.Fatalf("seed %d: sent %v, received %v", seed, sent, received)
		}
		waitFor(t, func() bool { return rpc.LiveStreams(list[0]) == 0 && rpc.LiveStreams(other) == 0 })
	}
}
