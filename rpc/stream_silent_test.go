package rpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// silentServer accepts a stream for each call and sends nothing else: neither FEEDBACK nor CLOSE. A
// brpc server does so for frames that arrive before it has marked the stream as connected, which it
// does after it has sent the response.
func silentServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return // the test has ended
		}
		defer func() { _ = conn.Close() }() // the test has ended
		for {
			f, err := readFrame(conn)
			if err != nil {
				return
			}
			if f.stream != nil {
				continue
			}
			if err := acceptStream(conn, f.reply.meta); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = l.Close() // no further connections
		<-ended
	})
	return l.Addr().String()
}

// acceptStream sends the response that accepts the stream of a request.
func acceptStream(conn net.Conn, request *pb.Meta) error {
	id := request.GetStreamSettings().StreamId
	response, err := appendFrame(nil, frame.Message, &pb.Meta{
		Response: &pb.Response{}, CorrelationId: request.CorrelationId,
		StreamSettings: &pb.StreamSettings{StreamId: id, NeedFeedback: proto.Bool(true), Writable: proto.Bool(true)},
	}, []byte{0x0a, 0}) // an EchoResponse with an empty message
	if err != nil {
		return err
	}
	b, err := appendFrame(nil, frame.Stream, &pb.StreamFrame{StreamId: id, SourceStreamId: id, FrameType: proto.Int32(3)}, response)
	if err != nil {
		return err
	}
	_, err = conn.Write(b)
	return err
}

// appendFrame appends a frame to b.
func appendFrame(b []byte, kind frame.Kind, meta proto.Message, data []byte) ([]byte, error) {
	m, err := proto.MarshalOptions{Deterministic: true}.Marshal(meta)
	if err != nil {
		return nil, err
	}
	head := make([]byte, frame.HeaderBytes)
	if err := (frame.Header{Kind: kind, Meta: int64(len(m)), Body: int64(len(m) + len(data))}).Put(head); err != nil {
		return nil, err
	}
	return append(append(append(b, head...), m...), data...), nil
}

// TestStreamCloseWithoutAnswer closes streams of a server that answers no CLOSE.
func TestStreamCloseWithoutAnswer(t *testing.T) {
	client := newClient(t, silentServer(t), rpc.ClientOptions{})
	for range 1100 { // more than a connection may have at a time
		list, err := openStreams(t, client, "", 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := list[0].Close(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = list[0].Receive(ctx)
		cancel()
		if !errors.Is(err, io.EOF) || rpc.LiveStreams(list[0]) != 0 {
			t.Fatalf("after close: %v, %d streams", err, rpc.LiveStreams(list[0]))
		}
	}
}

// TestStreamSendWithoutFeedback sends a message beyond MaxBuffered after a message whose FEEDBACK is
// missing.
func TestStreamSendWithoutFeedback(t *testing.T) {
	client := newClient(t, silentServer(t), rpc.ClientOptions{})
	list, err := openStreams(t, client, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{26, rpc.DefaultMaxBuffered} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := list[0].Send(ctx, chain.OfBytes(make([]byte, n)))
		cancel()
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := list[0].Send(ctx, chain.OfBytes([]byte("x"))); rpc.CodeOf(err) != rpc.TimedOut {
		t.Errorf("beyond MaxBuffered: %v", err)
	}
}
