package rpc_test

import (
	"bytes"
	"cmp"
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

// method returns the method that the client calls.
func (f flags) method() string {
	return cmp.Or(f["service"], "example.EchoService") + "/" + cmp.Or(f["method"], "Echo")
}

func (f flags) String() string {
	var list []string
	for k, v := range f {
		list = append(list, "-"+k+"="+v)
	}
	return strings.Join(list, " ")
}

// replay answers the requests of each connection with the captured replies, in which it replaces
// the correlation ids. After the last reply it closes the connection, or waits until the client
// does. It calls received for each request.
func replay(t *testing.T, l net.Listener, c *golden.Capture, received func(reply)) {
	var group sync.WaitGroup
	defer group.Wait()
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
		group.Go(func() {
			defer func() { _ = conn.Close() }() // end of the replay
			var previous int64
			for {
				f, err := readFrame(conn)
				if err != nil {
					return
				}
				id := f.reply.meta.GetCorrelationId()
				received(reply{f.reply.meta, f.data})
				if len(frames) == 0 {
					frames = take()
				}
				if len(frames) == 0 && hang {
					_, _ = io.Copy(io.Discard, conn) // until the client gives up
				}
				if len(frames) == 0 {
					return
				}
				if late { // the client has given up the call before
					id, previous = previous, id
					if id == 0 {
						continue
					}
				}
				h, _ := frame.Parse(frames)
				if _, err := conn.Write(withID(t, frames[:frame.HeaderBytes+h.Body], h, id)); err != nil {
					return
				}
				frames = frames[frame.HeaderBytes+h.Body:]
			}
		})
	}
}

// withID returns a captured frame with another correlation id.
func withID(t *testing.T, b []byte, h frame.Header, id int64) []byte {
	m := new(pb.Meta)
	if err := proto.Unmarshal(b[frame.HeaderBytes:frame.HeaderBytes+h.Meta], m); err != nil {
		t.Error(err)
		return nil
	}
	m.CorrelationId = &id
	out, err := appendFrame(nil, h.Kind, m, b[frame.HeaderBytes+h.Meta:])
	if err != nil {
		t.Error(err)
	}
	return out
}

// TestCapturedReplies calls a server that sends the captured replies. Each call must end as that of
// the captured client did, and the requests must be those of captures of this client.
func TestCapturedReplies(t *testing.T) {
	for _, c := range golden.Load(t, "testdata/golden", "testdata/peers/rpc-to-brpc", "testdata/peers/rpc-to-brpc-go") {
		if c.Client == "raw bytes" || strings.HasPrefix(c.Name, "stream-") || strings.HasPrefix(c.Name, "raw-") {
			continue
		}
		t.Run(c.Dir+"/"+c.Name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var requests []reply
			var mu sync.Mutex
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				replay(t, l, c, func(r reply) {
					mu.Lock()
					defer mu.Unlock()
					requests = append(requests, r)
				})
			}()
			if c.Name == "err-logoff" { // the other calls need the timing of the capture
				c.Outcome = "ok len=5 att=0"
				c.Client = strings.Replace(c.Client, "-n=3", "-n=1", 1)
			}
			got := callPeer(t, l.Addr().String(), parseFlags(c.Client))
			if err := l.Close(); err != nil { // ends the replay
				t.Error(err)
			}
			<-ended
			checkOutcomes(t, c, got)
			if c.Dir != "golden" && len(c.Conns()) == 1 {
				checkRequests(t, requests, replies(t, c.Sent(c.Conns()[0], true)), strings.Contains(c.Name, "timeout"))
			}
		})
	}
}

// checkRequests compares requests with captured ones, of which some may be missing. JSON and text
// differ in spaces from run to run.
func checkRequests(t *testing.T, got, want []reply, some bool) {
	t.Helper()
	if len(got) != len(want) && (!some || len(got) == 0 || len(got) > len(want)) {
		t.Fatalf("%d requests, not %d", len(got), len(want))
	}
	for i := range got {
		g, w := got[i].plain(t), want[i].plain(t)
		if !proto.Equal(g.meta, w.meta) || rpc.Content(g.meta.GetContentType()) == rpc.Protobuf && !bytes.Equal(g.data, w.data) {
			t.Errorf("request %d: got\n%v %q, want\n%v %q", i, g.meta, g.data, w.meta, w.data)
		}
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
			want = append(want, w)
		}
	}
	want, got = withoutTexts(want), withoutTexts(got)
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < len(got) || !slices.Equal(got, want) {
		t.Errorf("outcomes %q, not %q", got, want)
	}
}

// withoutTexts removes the texts of errors from outcomes.
func withoutTexts(list []string) (out []string) {
	for _, s := range list {
		before, _, _ := strings.Cut(s, " text=")
		out = append(out, strings.TrimSpace(before))
	}
	return out
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
	if ms := f.number("cancel", 0); ms > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer time.AfterFunc(time.Duration(ms)*time.Millisecond, cancel).Stop()
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
	if _, ok := f["deliver"]; ok {
		options = append(options, rpc.SendTimeout())
	}
	out := new(echo.EchoResponse)
	err := c.Call(ctx, f.method(), &echo.EchoRequest{Message: proto.String(f["msg"])}, out, options...)
	if err != nil {
		return fmt.Sprintf("failed code=%d text=%v", rpc.CodeOf(err), err)
	}
	if out.GetMessage() != f["msg"] || strings.HasPrefix(f["msg"], "fields") && fields["answer"] != "42" {
		t.Errorf("%q, not %q", out.GetMessage(), f["msg"])
	}
	if b, err := got.Bytes(); err != nil || string(b) != f["att"] {
		t.Errorf("attachment %q, %v", b, err)
	}
	return fmt.Sprintf("ok len=%d att=%d", len(out.GetMessage()), got.Len())
}
