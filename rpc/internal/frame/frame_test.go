package frame_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/golden"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var limits = frame.Limits{Body: 64 << 20, Meta: 1 << 20, Stall: 10 * time.Second}

// deliver returns a connection that delivers b in pieces of the given sizes and is then closed.
func deliver(t *testing.T, b []byte, piece func() int) net.Conn {
	t.Helper()
	in, out := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = out.Close() }() // end of the stream
		for len(b) > 0 {
			n := min(piece(), len(b))
			if _, err := out.Write(b[:n]); err != nil {
				return // the reader has stopped
			}
			b = b[n:]
		}
	}()
	t.Cleanup(func() {
		_ = in.Close() // unblocks the writer
		<-done
	})
	return in
}

// readAll returns a line for each frame and the error at the end.
func readAll(r *frame.Reader) (lines []string, data [][]byte, err error) {
	for at := 0; ; {
		h, meta, err := r.Next()
		if err != nil {
			return lines, data, err
		}
		lines = append(lines, fmt.Sprintf("@%d %s body=%d meta=%d payload+attachment=%d", at, name(h.Kind), h.Body, h.Meta, h.Body-h.Meta))
		all := bytes.Clone(meta)
		c, err := r.ReadChain(r.Left())
		if err != nil {
			return lines, data, err
		}
		b, err := c.Bytes()
		c.Release()
		if err != nil {
			return lines, data, err
		}
		data = append(data, append(all, b...))
		at += frame.HeaderBytes + int(h.Body)
	}
}

func name(k frame.Kind) string {
	if k == frame.Stream {
		return "STRM"
	}
	return "PRPC"
}

var summary = regexp.MustCompile(`^@\d+ \w+ body=\d+ meta=\d+ payload\+attachment=\d+`)

// malformed lists the captured requests that end the connection.
var malformed = map[string]error{
	"raw-badmagic": errdefs.ErrMismatch, "raw-body-max": errdefs.ErrNoSpace, "raw-meta-gt-body": errdefs.ErrInvalid,
	"raw-ok-then-bad": errdefs.ErrMismatch, "raw-body-64M": io.ErrUnexpectedEOF,
}

// TestCapturedFrames splits each captured direction into frames. The bytes arrive at once, one by
// one, and in random pieces.
func TestCapturedFrames(t *testing.T) {
	frames := 0
	for _, c := range golden.Load(t, "../../testdata/golden") {
		for _, d := range c.Directions {
			if d.Cut {
				continue
			}
			rng := rand.New(rand.NewPCG(1, uint64(frames)))
			for _, piece := range []func() int{func() int { return 1 << 20 }, func() int { return 1 }, func() int { return 1 + rng.IntN(40) }} {
				lines, _, err := readAll(frame.NewReader(deliver(t, d.Bytes, piece), limits))
				want := io.EOF
				if d.ToServer && malformed[c.Name] != nil {
					want = malformed[c.Name]
				}
				if !errors.Is(err, want) {
					t.Fatalf("%s: %v, not %v", c.Name, err, want)
				}
				frames += len(lines)
				for i, line := range lines {
					if got := summary.FindString(d.Frames[i]); got != line {
						t.Fatalf("%s: frame %d: %s, not %s", c.Name, i, line, got)
					}
				}
				if errors.Is(want, io.EOF) && len(lines) != len(d.Frames) {
					t.Fatalf("%s: %d frames, not %d", c.Name, len(lines), len(d.Frames))
				}
			}
		}
	}
	t.Logf("%d frames", frames)
}

// TestCapturedMetas decodes each captured meta and encodes it again. The bytes must be equal.
func TestCapturedMetas(t *testing.T) {
	metas := 0
	for _, c := range golden.Load(t, "../../testdata/golden") {
		if c.Name == "raw-meta-garbage" || c.Name == "raw-no-method" {
			continue
		}
		for _, d := range c.Directions {
			if d.ToServer && c.Client == "raw bytes" || d.Cut {
				continue // hand-made
			}
			for b := d.Bytes; len(b) >= frame.HeaderBytes; {
				h, err := frame.Parse(b)
				if err != nil {
					t.Fatal(err)
				}
				var m proto.Message = new(pb.Meta)
				if h.Kind == frame.Stream {
					m = new(pb.StreamFrame)
				}
				want := b[frame.HeaderBytes : frame.HeaderBytes+h.Meta]
				if err := proto.Unmarshal(want, m); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, frame.HeaderBytes)
				if err := h.Put(got); err != nil {
					t.Fatal(err)
				}
				if got, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(got, m); err != nil || !bytes.Equal(got, b[:frame.HeaderBytes+h.Meta]) {
					t.Fatalf("%s: %v: %x, not %x", c.Name, err, got, b[:frame.HeaderBytes+h.Meta])
				}
				metas++
				b = b[frame.HeaderBytes+h.Body:]
			}
		}
	}
	if metas < 200 {
		t.Errorf("%d metas", metas)
	}
}

func TestSlowFrameEndsTheConnection(t *testing.T) {
	in, out := net.Pipe()
	defer func() { _, _ = in.Close(), out.Close() }()
	r := frame.NewReader(in, frame.Limits{Body: 1 << 20, Meta: 1 << 10, Stall: 50 * time.Millisecond})
	go func() {
		time.Sleep(150 * time.Millisecond) // longer than a frame may stall
		_, _ = out.Write([]byte("PRPC\x00\x00\x00\x01"))
	}()
	_, _, err := r.Next()
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a frame that stops after 8 bytes: %v", err)
	}
}

// A deadline of a frame does not end the wait for a later frame.
func TestIdleConnectionHasNoDeadline(t *testing.T) {
	in, out := net.Pipe()
	defer func() { _, _ = in.Close(), out.Close() }()
	r := frame.NewReader(in, frame.Limits{Body: 1 << 20, Meta: 1 << 10, Stall: 50 * time.Millisecond})
	go func() {
		for _, b := range []string{"PRPC\x00\x00", "\x00\x01\x00\x00\x00\x00x", "", "PRPC\x00\x00", "\x00\x00\x00\x00\x00\x00"} {
			if b == "" {
				time.Sleep(150 * time.Millisecond) // longer than a frame may stall
			}
			_, _ = out.Write([]byte(b))
		}
	}()
	for _, want := range []int64{1, 0} {
		if h, _, err := r.Next(); err != nil || h.Body != want {
			t.Fatalf("frame of %d bytes, %v; want %d", h.Body, err, want)
		}
	}
}

func FuzzReader(f *testing.F) {
	for _, c := range golden.Load(f, "../../testdata/golden") {
		for _, d := range c.Directions {
			f.Add(d.Bytes)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		small := frame.Limits{Body: 1 << 16, Meta: 1 << 10, Stall: time.Second}
		_, data, err := readAll(frame.NewReader(deliver(t, b, func() int { return 1 << 20 }), small))
		if err == nil {
			t.Fatal("the reader reached no end")
		}
		var again []byte
		rest := b
		for _, d := range data {
			h, err := frame.Parse(rest)
			if err != nil {
				t.Fatal(err)
			}
			again = append(append(again, rest[:frame.HeaderBytes]...), d...)
			rest = rest[frame.HeaderBytes+h.Body:]
		}
		if !bytes.HasPrefix(b, again) {
			t.Fatalf("read %x of %x", again, b)
		}
	})
}
