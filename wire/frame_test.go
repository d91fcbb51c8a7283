package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// frame is a frame as tests write and read it.
type frame struct{ body, data []byte }

func pattern(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// someFrames returns frames with lengths around those of the buffers.
func someFrames() (list []frame) {
	for i, body := range []int{0, 1, 64, 4096, 32<<10 - 16, 32 << 10, 32<<10 + 1, 200 << 10} {
		for j, data := range []int{0, 1, 4096, 4097, 32 << 10, 64<<10 + 3, 300 << 10} {
			list = append(list, frame{pattern(i, body), pattern(j+100, data)})
		}
	}
	return list
}

// writeFrames writes the frames to w, with data in several pieces, and flushes after every n
// frames.
func writeFrames(w io.Writer, list []frame, n int) error {
	f := wire.NewFrameWriter(w)
	for i, x := range list {
		cut := len(x.data) / 3
		if err := f.Append(x.body, x.data[:cut], nil, x.data[cut:]); err != nil {
			return err
		}
		if (i+1)%n == 0 {
			if err := f.Flush(); err != nil {
				return err
			}
		}
	}
	return f.Flush()
}

// readFrames reads the frames and compares them. It lets the reader skip some of the data.
func readFrames(t *testing.T, r io.Reader, list []frame) {
	t.Helper()
	f := wire.NewFrameReader(r, 1<<20, 1<<30)
	for i, want := range list {
		body, n, err := f.Next()
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if !bytes.Equal(body, want.body) || n != uint64(len(want.data)) {
			t.Fatalf("frame %d has a body of %d and data of %d bytes, want %d and %d", i, len(body), n, len(want.body), len(want.data))
		}
		if i%5 == 4 {
			n /= 2
		}
		got := make([]byte, n)
		cut := n / 4
		if err := f.ReadData(got[:cut], nil, got[cut:]); err != nil {
			t.Fatalf("data of frame %d: %v", i, err)
		}
		if !bytes.Equal(got, want.data[:n]) || f.DataLeft() != uint64(len(want.data))-n {
			t.Fatalf("data of frame %d differ, %d left", i, f.DataLeft())
		}
		if err := f.ReadData(make([]byte, f.DataLeft()+1)); !errors.Is(err, errdefs.ErrInvalid) {
			t.Fatalf("more data than frame %d has: %v", i, err)
		}
	}
	for range 2 {
		if _, _, err := f.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last frame: %v", err)
		}
	}
	if n := f.Buffered(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

// TestFrameVector compares a frame with its expected bytes.
func TestFrameVector(t *testing.T) {
	var b bytes.Buffer
	if err := writeFrames(&b, []frame{{[]byte("body"), []byte("data!")}}, 1); err != nil {
		t.Fatal(err)
	}
	want := "04000000" + "66309a1e" + "0500000000000000" + hex.EncodeToString([]byte("bodydata!"))
	if got := hex.EncodeToString(b.Bytes()); got != want {
		t.Errorf("frame %s, want %s", got, want)
	}
}

func TestFrames(t *testing.T) {
	list := someFrames()
	for name, through := range map[string]func(r io.Reader) io.Reader{
		"whole":         func(r io.Reader) io.Reader { return r },
		"byte by byte":  iotest.OneByteReader,
		"half by half":  iotest.HalfReader,
		"error at once": iotest.DataErrReader,
	} {
		for _, n := range []int{1, 3, 1000} {
			t.Run(name, func(t *testing.T) {
				var b bytes.Buffer
				if err := writeFrames(&b, list, n); err != nil {
					t.Fatal(err)
				}
				readFrames(t, through(&b), list)
			})
		}
	}
}

// TestFramesOverTCP uses vectored writes.
func TestFramesOverTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	list := slices.Repeat(someFrames(), 3)
	wrote := make(chan error, 1)
	go func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			err = errors.Join(writeFrames(c, list, 7), c.Close())
		}
		wrote <- err
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	readFrames(t, c, list)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

// TestFramesDamaged flips each bit of prefix and body, and cuts the frame at each byte.
func TestFramesDamaged(t *testing.T) {
	var b bytes.Buffer
	if err := writeFrames(&b, []frame{{pattern(1, 20), pattern(2, 8)}}, 1); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	for bit := range 8 * (wire.FramePrefixBytes + 20) {
		damaged := slices.Clone(whole)
		damaged[bit/8] ^= 1 << (bit % 8)
		f := wire.NewFrameReader(bytes.NewReader(damaged), 64, 64)
		_, _, err := f.Next()
		if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrInvalid) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("bit %d: %v", bit, err)
		}
		if _, _, again := f.Next(); !errors.Is(again, err) {
			t.Errorf("bit %d: then %v", bit, again)
		}
	}
	for n := range whole {
		f := wire.NewFrameReader(bytes.NewReader(whole[:n]), 64, 64)
		_, _, err := f.Next()
		if err == nil {
			err = f.ReadData(make([]byte, 8))
		}
		if n == 0 && !errors.Is(err, io.EOF) || n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
	f := wire.NewFrameReader(bytes.NewReader(whole[:len(whole)-1]), 64, 64)
	if _, _, err := f.Next(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("skipped data that are cut: %v", err)
	}
}

// TestFrameLimits checks that a frame above the limits is refused when its prefix is read, and that
// announced bytes use no memory before they arrive.
func TestFrameLimits(t *testing.T) {
	for _, x := range []struct {
		body, maxBody uint32
		data, maxData uint64
		want          error
	}{
		{65, 64, 0, 0, errdefs.ErrInvalid},
		{1<<32 - 1, 1 << 30, 0, 0, errdefs.ErrInvalid},
		{0, 0, 1, 0, errdefs.ErrInvalid},
		{0, 0, 1<<64 - 1, 1 << 62, errdefs.ErrInvalid},
		{1 << 30, 1 << 30, 0, 0, io.ErrUnexpectedEOF}, // no more bytes follow
	} {
		prefix := binary.LittleEndian.AppendUint32(nil, x.body)
		prefix = binary.LittleEndian.AppendUint64(append(prefix, 0, 0, 0, 0), x.data)
		var err error
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err = wire.NewFrameReader(bytes.NewReader(prefix), x.maxBody, x.maxData).Next()
		runtime.ReadMemStats(&after)
		n := after.TotalAlloc - before.TotalAlloc
		if !errors.Is(err, x.want) || n > 1<<20 {
			t.Errorf("%+v: %v, with %d bytes of memory", x, err, n)
		}
	}
}

// failWriter fails after left bytes.
type failWriter struct{ left int }

var errConn = errors.New("the connection fails")

func (w *failWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	if w.left -= n; n < len(p) {
		return n, errConn
	}
	return n, nil
}

func TestFrameWriterFails(t *testing.T) {
	f := wire.NewFrameWriter(&failWriter{left: 100 << 10})
	if err := f.Append(make([]byte, 50<<10), make([]byte, 50<<10)); err != nil || f.Buffered() != 100<<10+wire.FramePrefixBytes {
		t.Fatalf("%v, %d bytes", err, f.Buffered())
	}
	for range 2 {
		if err := f.Flush(); !errors.Is(err, errConn) {
			t.Errorf("flush: %v", err)
		}
		if err := f.Append(nil); !errors.Is(err, errConn) {
			t.Errorf("append: %v", err)
		}
	}
}

// TestFramesAllocateNothing checks that writing and reading a frame does not allocate.
func TestFramesAllocateNothing(t *testing.T) {
	var b bytes.Buffer
	w, r := wire.NewFrameWriter(&b), wire.NewFrameReader(&b, 1<<10, 1<<20)
	body, data := make([]byte, 100), [][]byte{make([]byte, 8<<10), make([]byte, 10)}
	round := func() {
		err := errors.Join(w.Append(body, data...), w.Flush())
		_, _, next := r.Next()
		if err := errors.Join(err, next, r.ReadData(data...)); err != nil {
			t.Fatal(err)
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzFrameReader(f *testing.F) {
	var b bytes.Buffer
	if err := writeFrames(&b, []frame{{[]byte("body"), []byte("data")}, {nil, nil}, {make([]byte, 100), make([]byte, 5000)}}, 1); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes(), uint64(1))
	f.Add(b.Bytes()[:30], uint64(2))
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := wire.NewFrameReader(bytes.NewReader(in), 4096, 1<<16)
		var out bytes.Buffer
		w := wire.NewFrameWriter(&out)
		for {
			body, n, err := r.Next()
			if err != nil {
				if at := out.Len(); !bytes.Equal(in[:at], out.Bytes()) || errors.Is(err, io.EOF) && at != len(in) {
					t.Fatalf("%d bytes were read as others, %v", at, err)
				}
				return
			}
			if len(body) > 4096 || n > 1<<16 {
				t.Fatalf("body of %d and data of %d bytes", len(body), n)
			}
			body, data := slices.Clone(body), make([]byte, n)
			cut := random.Uint64N(n + 1)
			if r.ReadData(data[:cut], data[cut:]) != nil {
				return
			}
			if err := errors.Join(w.Append(body, data), w.Flush()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// BenchmarkFrames sends frames over a loopback TCP connection.
func BenchmarkFrames(b *testing.B) {
	for name, n := range map[string]int{"4KiB": 4 << 10, "2MiB": 2 << 20} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			rounds := b.N
			wrote := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					wrote <- err
					return
				}
				w := wire.NewFrameWriter(c)
				body, data := make([]byte, 64), make([]byte, n)
				for i := range rounds {
					err = errors.Join(err, w.Append(body, data))
					if i%64 == 63 || n > 64<<10 {
						err = errors.Join(err, w.Flush())
					}
				}
				wrote <- errors.Join(err, w.Flush(), c.Close())
			}()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			r, data := wire.NewFrameReader(c, 1<<10, 1<<30), make([]byte, n)
			b.SetBytes(int64(n))
			b.ResetTimer()
			for range rounds {
				if _, _, err := r.Next(); err != nil {
					b.Fatal(err)
				}
				if err := r.ReadData(data); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-wrote; err != nil {
				b.Error(err)
			}
		})
	}
}
