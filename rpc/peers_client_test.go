package rpc_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/internal/golden"
)

// outcomes collects the outcomes of a client. It is safe for concurrent use.
type outcomes struct {
	mu   sync.Mutex
	list []string
}

func (o *outcomes) add(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, fmt.Sprintf(format, args...))
}

// callPeer makes the calls of the flags on a new client, as `peer call` of tools/rpcpeers does.
func callPeer(t *testing.T, addr string, f flags) []string {
	t.Helper()
	o := rpc.ClientOptions{Credential: []byte(f["auth"])}
	o.Connections = map[string]rpc.Connections{"": rpc.Single, "single": rpc.Single, "pooled": rpc.Pooled, "short": rpc.Short}[f["conn"]]
	if _, ok := f["tls"]; ok {
		o.TLS = &tls.Config{InsecureSkipVerify: true} // the peers verify nothing either
	}
	client, err := rpc.NewClient(addr, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	f = maps.Clone(f)
	if n := f.number("bigmsg", 0); n > 0 {
		f["msg"] = strings.Repeat("m", n)
	}
	if n := f.number("bigatt", 0); n > 0 {
		f["att"] = strings.Repeat("a", n)
	}
	switch {
	case f["stream"] != "":
		var o outcomes
		var group sync.WaitGroup
		for range f.number("parallel", 1) {
			group.Go(func() { useStreams(t, client, f, &o) })
		}
		group.Wait()
		return o.list
	case f["second"] != "":
		first := make(chan string, 1)
		go func() { first <- call(t, client, f) }()
		time.Sleep(time.Duration(f.number("second", 0)) * time.Millisecond)
		second := maps.Clone(f)
		second["msg"] = "hello"
		got := call(t, client, second)
		return []string{<-first, got}
	}
	return callAll(t, client, f)
}

// pause is the time between opening a stream and using it. brpc does not answer a CLOSE, and sends no
// FEEDBACK, for frames that arrive before it has marked the stream as connected.
const pause = 50 * time.Millisecond

// useStreams opens streams, sends the messages of the flags, and closes the streams one by one.
func useStreams(t *testing.T, client *rpc.Client, f flags, o *outcomes) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, sendOnly := f["noclienthandler"]
	list, err := client.OpenStreams(ctx, echoMethod, &echo.EchoRequest{Message: proto.String(f["msg"])}, new(echo.EchoResponse),
		f.number("streams", 1), rpc.StreamOptions{SendOnly: sendOnly})
	if err != nil {
		o.add("failed code=%d text=%v", rpc.CodeOf(err), err)
		return
	}
	o.add("stream open ok")
	time.Sleep(pause)
	flood := f.number("flood", 0)
	var ended []chan struct{}
	for _, s := range list {
		end := make(chan struct{})
		ended = append(ended, end)
		echoed := make(chan struct{}, 1024)
		go func() {
			defer close(end)
			receiveAll(ctx, s, flood, echoed, o)
		}()
		sendAll(ctx, s, f, end, echoed, o)
		if flood > 0 {
			sendFlood(ctx, s, flood, o)
			for range flood {
				wait(ctx, echoed, end)
			}
		}
	}
	for i, s := range list {
		o.add("close %s", writeOutcome(s.Close()))
		<-ended[i]
		time.Sleep(pause) // for the server's CLOSE and the RST
		if !sendOnly {
			o.add("stream closed")
		}
	}
}

// sendAll sends the messages of a client that counts none.
func sendAll(ctx context.Context, s *rpc.Stream, f flags, ended <-chan struct{}, echoed <-chan struct{}, o *outcomes) {
	count := map[string]int{"one": 1, "two": 4, "small": 4}[f["stream"]]
	for i := range count {
		text := "0123456789"
		if i == 0 {
			text = "abcdefghijklmnopqrstuvwxyz"
		}
		err := s.Send(ctx, chain.OfBytes([]byte(text)))
		o.add("write %s", writeOutcome(err))
		if _, silent := f["noclienthandler"]; f["msg"] == "echo" && !silent {
			wait(ctx, echoed, ended)
		}
		if f["msg"] == "srvclose" {
			wait(ctx, ended, nil)
		}
	}
	if n := f.number("big", 0); n > 0 {
		o.add("write big %s", writeOutcome(s.Send(ctx, chain.OfBytes(make([]byte, n)))))
		if f["msg"] == "echo" {
			wait(ctx, echoed, ended)
		}
	}
}

func wait(ctx context.Context, a, b <-chan struct{}) {
	select {
	case <-a:
	case <-b:
	case <-ctx.Done():
	}
}

const floodBytes = 64 << 10

// sendFlood sends messages that start with their index.
func sendFlood(ctx context.Context, s *rpc.Stream, n int, o *outcomes) {
	for i := range n {
		b := make([]byte, floodBytes)
		binary.LittleEndian.PutUint32(b, uint32(i))
		if err := s.Send(ctx, chain.OfBytes(b)); err != nil {
			o.add("write %s", writeOutcome(err))
			return
		}
	}
}

// receiveAll receives messages until the stream ends. Of a flood it counts the echoed messages.
func receiveAll(ctx context.Context, s *rpc.Stream, flood int, echoed chan<- struct{}, o *outcomes) {
	got, wrong := 0, 0
	for {
		m, err := s.Receive(ctx)
		if err != nil {
			if flood > 0 {
				o.add("echoed %d wrong %d", got, wrong)
			}
			if !errors.Is(err, io.EOF) {
				o.add("receive failed code=%d", rpc.CodeOf(err))
			}
			return
		}
		if flood == 0 {
			o.add("stream got %d bytes", m.Len())
		} else if b, err := m.Bytes(); err != nil || len(b) != floodBytes || int(binary.LittleEndian.Uint32(b)) != got {
			wrong++
		}
		m.Release()
		got++
		echoed <- struct{}{}
	}
}

func writeOutcome(err error) string {
	switch code := rpc.CodeOf(err); code {
	case rpc.OK:
		return "0"
	case rpc.Closed:
		return "closed"
	default:
		return fmt.Sprint(int(code))
	}
}

// TestCapturedStreamClients plays the server of each captured stream of this client. The client must
// send the captured frames, except for FEEDBACK, and report the captured outcomes.
func TestCapturedStreamClients(t *testing.T) {
	for _, c := range golden.Load(t, "testdata/peers/rpc-to-brpc") {
		if !strings.HasPrefix(c.Name, "stream-") {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }() // the test has ended
			f := parseFlags(c.Client)
			client := newClient(t, l.Addr().String(), rpc.ClientOptions{Credential: []byte(f["auth"])})
			var got outcomes
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				useStreams(t, client, f, &got)
			}()
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }() // the test has ended
			followCapture(t, conn, c)
			<-ended
			if got, want := counted(withoutTexts(got.list)), counted(strings.Split(c.Outcome, " / ")); !slices.Equal(got, want) {
				t.Errorf("outcomes %q, not %q", got, want)
			}
		})
	}
}

// followCapture plays the server of a capture: it reads and sends frames in the captured order. The
// order of frames of different streams may differ.
func followCapture(t *testing.T, conn net.Conn, c *golden.Capture) {
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience()))
	captured, toClient := bytes.NewReader(c.Sent("conn0", true)), c.Sent("conn0", false)
	var got, want []anyFrame
	for _, s := range c.Order {
		switch {
		case s.End:
		case !s.ToServer:
			if _, err := conn.Write(toClient[:s.Bytes]); err != nil {
				t.Fatal(err)
			}
			toClient = toClient[s.Bytes:]
		default:
			w, err := readFrame(captured)
			if err != nil {
				t.Fatal(err)
			}
			if !w.isFeedback() {
				got, want = append(got, next(t, conn)), append(want, w)
			}
		}
	}
	byStream := func(a, b anyFrame) int { return cmp.Compare(a.stream.GetStreamId(), b.stream.GetStreamId()) }
	slices.SortStableFunc(got, byStream)
	slices.SortStableFunc(want, byStream)
	for i, g := range got {
		if w := want[i]; !proto.Equal(g.stream, w.stream) || !proto.Equal(g.reply.meta, w.reply.meta) || string(g.data) != string(w.data) {
			t.Errorf("got  %v, want %v", g, w)
		}
	}
}
