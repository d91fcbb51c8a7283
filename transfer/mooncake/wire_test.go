package mooncake_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// The bytes in these tests are written by hand from the description of the protocol. They do not
// use the package's encoding.

const (
	statusOK       = "000000005654434d"
	statusRejected = "010000005654434d"
)

// request returns the header of a data request.
func request(length, address uint64, op byte) []byte {
	b := make([]byte, 24)
	binary.LittleEndian.PutUint64(b[0:], length)
	binary.LittleEndian.PutUint64(b[8:], address)
	b[16] = op
	copy(b[17:], "ignored")
	return b
}

func dataAddr(s *mooncake.Server) string {
	seg := s.Segment()
	return net.JoinHostPort(seg.DataHost, strconv.Itoa(seg.DataPort))
}

// writeStatus sends bytes given in hexadecimal.
func writeStatus(tb testing.TB, w io.Writer, text string) {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	must(tb, err)
	_, err = w.Write(b)
	must(tb, err)
}

func expectAnswer(tb testing.TB, r io.Reader, text string) {
	tb.Helper()
	want, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	must(tb, err)
	if got := take(tb, r, len(want)); !bytes.Equal(got, want) {
		tb.Errorf("got %x, want %x", got, want)
	}
}

// ended waits for the end of the connection and returns its error: EOF or a reset. It fails if more
// bytes arrive.
func ended(tb testing.TB, c net.Conn) error {
	tb.Helper()
	n, err := c.Read(make([]byte, 100))
	if n != 0 || err == nil {
		tb.Fatalf("%d bytes more", n)
	}
	if errors.Is(err, syscall.ETIMEDOUT) || isTimeout(err) {
		tb.Fatalf("the connection does not end: %v", err)
	}
	return err
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// TestHandshakeBytes checks handshake requests and their answers byte by byte.
func TestHandshakeBytes(t *testing.T) {
	received := make(chan mooncake.Notification, 10)
	s, there := serve(t, 4096, func(o *mooncake.ServerOptions) {
		o.OnNotify = func(_ context.Context, n mooncake.Notification) error { received <- n; return nil }
	})
	ask := func(text string) net.Conn {
		c := talk(t, s.Segment().Name)
		writeStatus(t, c, text)
		return c
	}
	c := ask("0300000000000000 03 7b7d") // probe with body {}
	expectAnswer(t, c, "1500000000000000 03 7b22737461747573223a2273756363657373227d")
	_ = ended(t, c)
	// Notify with body {"name":"a","notify_msg":"b"}.
	c = ask("1e00000000000000 02 7b226e616d65223a2261222c226e6f746966795f6d7367223a2262227d")
	expectAnswer(t, c, "2300000000000000 02 7b226e616d65223a22222c226e6f746966795f6d7367223a2273756363657373227d")
	_ = ended(t, c)
	if n := <-received; n != (mooncake.Notification{Name: "a", Message: "b"}) {
		t.Errorf("received %+v", n)
	}
	// Request metadata with any body.
	for _, body := range []string{"0100000000000000 01", "0300000000000000 01 7b7d", "0400000000000000 01 ffffff"} {
		c = ask(body)
		n := binary.LittleEndian.Uint64(take(t, c, 8))
		expectAnswer(t, c, "01")
		var got map[string]any
		must(t, json.Unmarshal(take(t, c, int(n)-1), &got))
		buffers, _ := got["buffers"].([]any)
		if got["name"] != s.Segment().Name || got["protocol"] != "tcp" || got["tcp_proto_version"] != 2.0 || got["tcp_data_port"] == 0.0 || len(buffers) != 1 {
			t.Errorf("segment %v", got)
		}
		b, _ := buffers[0].(map[string]any)
		if b["name"] != "cpu:0" || b["addr"] != float64(addr(there)) || b["length"] != 4096.0 {
			t.Errorf("buffer %v", b)
		}
		_ = ended(t, c)
	}
	c = ask("0300000000000000 00 7b7d") // RDMA
	n := binary.LittleEndian.Uint64(take(t, c, 8))
	if text := string(take(t, c, int(n))); !strings.Contains(text, `"reply_msg":"RDMA is not supported`) {
		t.Errorf("%q", text)
	}
	if st := s.Stats(); st.RefusedRDMA != 1 || st.Notifications != 1 || st.Handshakes != 6 {
		t.Errorf("%+v", st)
	}
}

// TestDataBytes checks data requests in both versions byte by byte.
func TestDataBytes(t *testing.T) {
	s, there := serve(t, 4096, nil)
	copy(there.Bytes(), "0123456789")
	c := talk(t, dataAddr(s))
	at := make([]byte, 8)
	binary.LittleEndian.PutUint64(at, addr(there)+2)
	a := hex.EncodeToString(at)
	writeStatus(t, c, "0300000000000000"+a+"00 00000000000000") // version 1: read 3 bytes
	expectAnswer(t, c, "323334")
	// Version 2 with the unused bytes set.
	writeStatus(t, c, "0300000000000000"+a+"80 ffffffffffffff")
	expectAnswer(t, c, statusOK+"323334")
	writeStatus(t, c, "0200000000000000"+a+"81 00000000000000 4142") // version 2: write 2 bytes
	expectAnswer(t, c, statusOK)
	if got := string(there.Bytes()[:6]); got != "01AB45" {
		t.Errorf("memory is %q", got)
	}
	writeStatus(t, c, "0100000000000000"+a+"01 00000000000000 43"+ // version 1: write 1 byte,
		"0200000000000000"+a+"80 00000000000000") // then version 2: read 2 bytes
	expectAnswer(t, c, statusOK+"4342")
	if st := s.Stats(); st.Reads != 3 || st.Writes != 2 || st.ReadBytes != 8 || st.WrittenBytes != 3 {
		t.Errorf("%+v", st)
	}
}

// A target refuses invalid requests: in version 2 with a status and a close, in version 1 with a
// reset. Memory is unchanged, and other requests succeed.
func TestHostileRequests(t *testing.T) {
	const most = ^uint64(0)
	s, there := serve(t, 4096, nil)
	pattern(there.Bytes(), 1)
	before := bytes.Clone(there.Bytes())
	base := addr(there)
	rejected := uint64(0)
	for name, r := range map[string]struct{ length, address uint64 }{
		"no length":           {0, base},
		"one byte too long":   {4097, base},
		"before":              {2, base - 1},
		"behind":              {1, base + 4096},
		"over the end":        {2, base + 4095},
		"address zero":        {8, 0},
		"the longest":         {most, base},
		"a sum that is small": {most - base + 2, base},
		"the last address":    {2, most},
		"both":                {most, most},
		"half of all":         {1 << 63, base},
	} {
		for _, op := range []byte{0, 1, 0x80, 0x81} {
			c := talk(t, dataAddr(s))
			_, err := c.Write(request(r.length, r.address, op))
			must(t, err)
			if op&0x80 != 0 {
				expectAnswer(t, c, statusRejected)
			}
			if err := ended(t, c); (op&0x80 == 0) != errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s, operation %#x: it ended by %v", name, op, err)
			}
			rejected++
		}
	}
	for _, op := range []byte{2, 0x7f, 0xff, 0x82} {
		c := talk(t, dataAddr(s))
		_, err := c.Write(request(8, base, op))
		must(t, err)
		_ = ended(t, c)
	}
	c := talk(t, dataAddr(s)) // half a request
	_, err := c.Write(request(8, base, 0x81)[:11])
	must(t, err)
	_ = c.CloseWrite() // the peer may have closed it
	_ = ended(t, c)
	c = talk(t, dataAddr(s)) // a write whose bytes have partly arrived and which is not confirmed
	_, err = c.Write(append(request(8, base, 0x81), before[:4]...))
	must(t, err)
	_ = c.CloseWrite() // the peer may have closed it
	_ = ended(t, c)
	if !bytes.Equal(there.Bytes(), before) {
		t.Error("memory has changed")
	}
	if st := s.Stats(); st.Rejected != rejected || st.Malformed != 5 || st.Failed != 1 || st.Reads+st.Writes != 0 {
		t.Errorf("%d were to be rejected: %+v", rejected, st)
	}
}

// The payload of a rejected write is read to its end. A sender that reads only after writing must
// still get the status.
func TestRejectionMidBody(t *testing.T) {
	s, there := serve(t, 4096, nil)
	c := talk(t, dataAddr(s))
	_, err := c.Write(append(request(16<<20, addr(there), 0x81), make([]byte, 16<<20)...))
	must(t, err)
	expectAnswer(t, c, statusRejected)
	_ = ended(t, c)
}

// Malformed handshakes are dropped and counted, whatever their length field, and do not delay other
// peers.
func TestHostileHandshakes(t *testing.T) {
	s, _ := serve(t, 4096, nil)
	idle := make([]net.Conn, 20)
	for i := range idle {
		idle[i] = talk(t, s.Segment().Name)
	}
	for _, text := range []string{
		"0000000000000000",
		"0100100000000000 01",
		"ffffffffffffffff 01",
		"0000000000000080 01",
		"0300000000000000 09 7b7d", // an unknown kind
		"0300000000000000 02 7b7b", // not JSON
	} {
		c := talk(t, s.Segment().Name)
		writeStatus(t, c, text)
		_ = c.CloseWrite() // the peer may have closed it
		_ = ended(t, c)
	}
	// Truncated requests.
	for _, text := range []string{"", "03", "0300000000000000", "0300000000000000 01 7b"} {
		c := talk(t, s.Segment().Name)
		writeStatus(t, c, text)
		_ = c.CloseWrite() // the peer may have closed it
		_ = ended(t, c)
	}
	eventually(t, "all are counted", func() bool { return s.Stats().Malformed == 10 })
	d, err := mooncake.OpenDirectory(mooncake.P2PHandshake, "")
	must(t, err)
	if _, err := mooncake.Probe(within(t), d, s.Segment().Name); err != nil {
		t.Errorf("beside idle connections: %v", err)
	}
	for _, c := range idle {
		must(t, c.Close())
	}
	if err := mooncake.Notify(within(t), d, s.Segment().Name, mooncake.Notification{Name: "a", Message: "b"}); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("at an unused port: %v, want ErrBusy", err)
	}
}

// The number of silent data connections is limited, and so is their time and that of connections
// that stall within a request.
func TestIdleAndStalledConnections(t *testing.T) {
	shortIdle, _ := serve(t, 4096, func(o *mooncake.ServerOptions) { o.IdleTime = 50 * time.Millisecond })
	_ = ended(t, talk(t, dataAddr(shortIdle)))
	s, there := serve(t, 64<<20, func(o *mooncake.ServerOptions) { o.StallTime = 100 * time.Millisecond })
	half := talk(t, dataAddr(s))
	_, err := half.Write(append(request(8, addr(there), 0x81), 1, 2, 3))
	must(t, err)
	_ = ended(t, half)
	unread := talk(t, dataAddr(s)) // requests more bytes than the kernel buffers, and reads none
	_, err = unread.Write(request(64<<20, addr(there), 0x80))
	must(t, err)
	eventually(t, "the stalled ones are given up", func() bool { return s.Stats().Failed == 2 })

	full, _ := serve(t, 4096, func(o *mooncake.ServerOptions) { o.MaxConnections = 2 })
	for range 2 {
		c := talk(t, dataAddr(full))
		// Start another request on each connection, because an idle one would be replaced.
		_, err = c.Write(append(request(1, addrOf(full), 0x80), 1))
		must(t, err)
		take(t, c, 9)
	}
	_ = ended(t, talk(t, dataAddr(full)))
	if st := full.Stats(); st.RefusedConnections != 1 {
		t.Errorf("%+v", st)
	}
}

// TestIdleConnectionsGiveWay checks that silent or slow connections do not keep other peers from
// handshakes or data requests.
func TestIdleConnectionsGiveWay(t *testing.T) {
	s, there := serve(t, 4096, func(o *mooncake.ServerOptions) { o.MaxConnections, o.StallTime = 2, 200*time.Millisecond })
	for range 256 {
		talk(t, s.Segment().Name)
	}
	d, err := mooncake.OpenDirectory(mooncake.P2PHandshake, "")
	must(t, err)
	eventually(t, "a handshake is answered", func() bool { _, err := mooncake.Probe(within(t), d, s.Segment().Name); return err == nil })
	talk(t, dataAddr(s))
	slow := talk(t, dataAddr(s))
	_, err = slow.Write(request(4096, addr(there), 0x81))
	must(t, err)
	go func() {
		for range 4095 { // too few bytes to complete the request
			if _, err := slow.Write([]byte{1}); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	for range 2 {
		eventually(t, "data is moved", func() bool {
			c := talk(t, dataAddr(s))
			_, _ = c.Write(request(1, addr(there), 0x80))
			_, err := io.ReadFull(c, make([]byte, 9))
			return err == nil
		})
	}
	_ = ended(t, slow)
}

func addrOf(s *mooncake.Server) uint64 { return s.Segment().Buffers[0].Addr }

// A write is confirmed only when its bytes are in memory. A peer that reads after the confirmation
// finds all of them.
func TestNoTornWrites(t *testing.T) {
	const n, rounds = 1 << 20, 100
	for _, version := range []int{1, 2} {
		s, there := serve(t, n, func(o *mooncake.ServerOptions) { o.Version = version })
		writer, from := open(t, s.Segment().Name, n, nil)
		reader, to := open(t, s.Segment().Name, n, nil)
		for i := range rounds {
			pattern(from.Bytes(), byte(i))
			must(t, do(t, writer, mooncake.Task{Op: transfer.Write, Local: addr(from), Remote: addr(there), Length: n}))
			must(t, do(t, reader, mooncake.Task{Op: transfer.Read, Local: addr(to), Remote: addr(there), Length: n}))
			if !bytes.Equal(from.Bytes(), to.Bytes()) {
				t.Fatalf("version %d: write %d is torn", version, i)
			}
		}
	}
}
