package mooncake_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// playTarget accepts plain TCP connections and calls play for each, which plays the target.
func playTarget(t *testing.T, play func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			play(c)
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

// expect reads as many bytes as text encodes in hexadecimal, and returns an error if they differ.
func expect(c net.Conn, text string) error {
	want, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		return err
	}
	got := make([]byte, len(want))
	for n := 0; n < len(got); {
		m, err := c.Read(got[n:])
		if err != nil {
			return fmt.Errorf("after %x: %w", got[:n], err)
		}
		n += m
	}
	if string(got) != string(want) {
		return fmt.Errorf("got %x, want %x", got, want)
	}
	return nil
}

func answer(c net.Conn, text string) error {
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err == nil {
		_, err = c.Write(b)
	}
	return err
}

// TestInitiatorBytes checks the bytes that a Remote sends to a target, in both versions.
func TestInitiatorBytes(t *testing.T) {
	for _, version := range []int{1, 2} {
		received := make(chan error, 100)
		v2, ok := "00", ""
		if version == 2 {
			v2, ok = "80", statusOK
		}
		address := playTarget(t, func(c net.Conn) {
			for _, step := range []struct{ want, say string }{
				// Read 4 bytes at 4096.
				{"0400000000000000 0010000000000000" + v2 + "00000000000000", ok + "61626364"},
				{"0300000000000000 0110000000000000" + v2[:1] + "1 00000000000000 78797a", ok},
			} {
				if err := expect(c, step.want); err != nil {
					received <- err
					return
				}
				if version == 1 && step.say == "" { // the byte that confirms a write
					if err := expect(c, "0100000000000000 0310000000000000 00 00000000000000"); err != nil {
						received <- err
						return
					}
					step.say = "7a"
				}
				if err := answer(c, step.say); err != nil {
					received <- err
					return
				}
			}
			received <- nil
		})
		d := fixed(t, address, version, mooncake.Buffer{Name: "cpu:0", Addr: 4096, Length: 4096})
		r, here := open(t, "x", 4096, func(o *mooncake.Options) { o.Directory, o.Lanes = d, 1 })
		copy(here.Bytes()[8:], "xyz")
		if err := do(t, r, mooncake.Task{Op: transfer.Read, Local: addr(here), Remote: 4096, Length: 4}); err != nil || string(here.Bytes()[:5]) != "abcd\x00" {
			t.Errorf("version %d: %v, %q", version, err, here.Bytes()[:5])
		}
		if err := do(t, r, mooncake.Task{Op: transfer.Write, Local: addr(here) + 8, Remote: 4097, Length: 3}); err != nil {
			t.Errorf("version %d: %v", version, err)
		}
		if err := <-received; err != nil {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// TestHandshakeOfAnInitiator checks the bytes that a Remote sends in the handshake.
func TestHandshakeOfAnInitiator(t *testing.T) {
	received := make(chan error, 1)
	segment := `{"name":"y","protocol":"tcp","tcp_data_port":7,"buffers":[]}`
	address := playTarget(t, func(c net.Conn) {
		err := expect(c, "0300000000000000 01 7b7d")
		if err == nil {
			b := binary.LittleEndian.AppendUint64(nil, uint64(len(segment)+1))
			_, err = c.Write(append(append(b, 1), segment...))
		}
		received <- err
	})
	d, err := mooncake.OpenDirectory(mooncake.P2PHandshake, "")
	must(t, err)
	s, err := d.Find(within(t), address)
	must(t, err)
	must(t, <-received)
	if s.Name != "y" || s.DataPort != 7 || s.DataHost != "127.0.0.1" || s.Version != 0 {
		t.Errorf("%+v", s)
	}
}

// If a target sends a wrong answer, the batch fails and memory is unchanged.
func TestTargetsThatLie(t *testing.T) {
	for name, say := range map[string]string{
		"no status":          "0123456789abcdef",
		"an end":             "",
		"half a status":      "00000000",
		"half of the bytes":  statusOK + "61",
		"another rejection":  "020000005654434d",
		"a status all zeros": "0000000000000000",
	} {
		address := playTarget(t, func(c net.Conn) {
			_ = answer(c, say) // some answers are sent before a request
			_ = expect(c, strings.Repeat("00", 24))
		})
		d := fixed(t, address, 2, mooncake.Buffer{Name: "cpu:0", Addr: 4096, Length: 4096})
		r, here := open(t, "x", 4096, func(o *mooncake.Options) { o.Directory, o.Lanes = d, 1 })
		b, err := r.Submit(within(t), []mooncake.Task{{Op: transfer.Read, Local: addr(here), Remote: 4096, Length: 4}})
		must(t, err)
		if err := b.Wait(within(t)); !errors.Is(err, errdefs.ErrBroken) || b.Status(0) != transfer.StatusFailed {
			t.Errorf("%s: %v, %s", name, err, b.Status(0))
		}
	}
	for name, text := range map[string]string{
		"another kind": "0300000000000000 03 7b7d", "a frame too large": "ffffffffffffff7f 01", "no JSON": "0200000000000000 01 7b", "nothing": "",
	} {
		address := playTarget(t, func(c net.Conn) { _ = answer(c, text) })
		if _, err := mooncake.Open(within(t), address, mooncake.Options{Memory: mooncake.NewRegions(nil)}); err == nil {
			t.Errorf("%s: it is taken for a segment", name)
		}
	}
}

// A target confirms a write before it has received the bytes. The task must not complete before its
// last byte was sent, because the caller may reuse the memory then.
func TestConfirmedBeforeItWasSent(t *testing.T) {
	const n = 64 << 20 // more than the kernel buffers
	confirmed := make(chan struct{}, 100)
	release := make(chan struct{})
	address := playTarget(t, func(c net.Conn) {
		// The header of the first 4 MiB.
		_ = expect(c, "0000400000000000 0010000000000000 81 00000000000000")
		_ = answer(c, statusOK)
		confirmed <- struct{}{}
		<-release
	})
	d := fixed(t, address, 2, mooncake.Buffer{Name: "cpu:0", Addr: 4096, Length: n})
	r, here := open(t, "x", n, func(o *mooncake.Options) { o.Directory, o.Lanes = d, 1 })
	b, err := r.Submit(within(t), []mooncake.Task{{Op: transfer.Write, Local: addr(here), Remote: 4096, Length: n}})
	must(t, err)
	<-confirmed
	select {
	case <-b.Done():
		if b.Status(0) == transfer.StatusCompleted {
			t.Error("the task is complete, and its bytes are not sent")
		}
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	if err := b.Wait(within(t)); !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("%v, want ErrBroken", err)
	}
}
