package transfer

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/share"
)

func FuzzHello(f *testing.F) {
	id := share.NewIdentity()
	h := hello{purpose: forData, from: id, to: id, conn: 7}
	f.Add(h.encode())
	f.Add(encodeWelcome(statusOK, id))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHello(b); err == nil && !bytes.Equal(h.encode(), b) {
			t.Errorf("%+v is written as %x, not %x", h, h.encode(), b)
		}
		if s, id, err := decodeWelcome(b); err == nil && !bytes.Equal(encodeWelcome(s, id), b) {
			t.Errorf("%d of %s is not written as %x", s, id, b)
		}
	})
}

func FuzzFrame(f *testing.F) {
	for _, v := range []any{connectRequest{1, 0, rail.Endpoint{}}, describeRequest{"kv"}, fenceRequest{[]uint64{1, 2}}, notifyRequest{Number: 1, Segment: "kv", Body: []byte("x")}} {
		x, err := newFrame(callNotify, v)
		must(f, err)
		var b bytes.Buffer
		must(f, x.write(&b))
		f.Add(b.Bytes())
	}
	f.Add([]byte{255, 255, 255, 255, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := readFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		var out bytes.Buffer
		must(t, x.write(&out))
		if !bytes.HasPrefix(b, out.Bytes()) {
			t.Errorf("a frame is written as %x, not %x", out.Bytes(), b)
		}
		_ = x.decode(new(fenceRequest))
		_ = x.decode(new(describeRequest))
		_ = x.decode(new(notifyRequest))
	})
}

func FuzzRequest(f *testing.F) {
	add := func(q request) {
		var b bytes.Buffer
		must(f, q.write(&b))
		f.Add(b.Bytes())
	}
	add(request{op: Write, id: 1, segment: 1, shape: shape{[]plane{{0, 0, 100}}, pageZero}})
	add(request{op: Read, id: 2, segment: 1, shape: shape{[]plane{{4096, 512, 512}, {1 << 40, 1 << 20, 1}}, []uint32{0, 1 << 31, 7}}})
	add(request{op: Read, id: 3, shape: shape{[]plane{{1<<63 - 1, 1<<63 - 1, 1}}, []uint32{1<<32 - 1}}})
	var b bytes.Buffer
	must(f, (&reply{status: statusInvalid, id: 9, text: []byte("no")}).write(&b))
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := readReply(bytes.NewReader(b)); err == nil {
			var out bytes.Buffer
			must(t, p.write(&out))
			if !bytes.HasPrefix(b, out.Bytes()) {
				t.Errorf("a reply is written as %x, not %x", out.Bytes(), b)
			}
		}
		var q request
		if q.read(bytes.NewReader(b), func(int64) error { return nil }) != nil {
			return
		}
		var out bytes.Buffer
		must(t, q.write(&out))
		if !bytes.HasPrefix(b, out.Bytes()) {
			t.Errorf("a request is written as %x, not %x", out.Bytes(), b)
		}
		var total int64
		must(t, q.shape.each(func(off, n int64) error {
			if off < 0 || n <= 0 || off+n < off {
				t.Fatalf("%d bytes at %d", n, off)
			}
			total += n
			return nil
		}))
		if total != q.shape.bytes() || total > maxLength {
			t.Errorf("%d bytes, %d in pieces", q.shape.bytes(), total)
		}
	})
}

func FuzzDescription(f *testing.F) {
	d := Description{Name: "kv", Engine: share.NewIdentity(), Segment: 1, Host: "h", NICs: []string{"rxe1"}, Buffers: []Buffer{
		{Offset: 0, Length: 10, Kind: "host", Keys: []rail.Key{{Addr: 4095, RKey: 7}}},
		{Name: "x", Offset: 4096, Length: 10, Kind: "device", Share: &share.Descriptor{
			Identity: share.NewIdentity(), Type: device.HandlePosixFD, PID: 1, Socket: "/s", Device: "GPU-1", Bytes: 100, Offset: 1, Length: 10,
		}},
	}}
	must(f, d.Validate())
	for _, v := range []any{d, Location{share.NewIdentity(), "127.0.0.1:1"}} {
		b, err := json.Marshal(v)
		must(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{"buffers":[{"offset":9223372036854775807,"length":1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if l, err := ParseLocation(b); err == nil && (l.Address == "" || l.Engine == share.Identity{}) {
			t.Errorf("location %+v", l)
		}
		d, err := ParseDescription(b)
		if err != nil {
			return
		}
		for i := range d.Buffers {
			if k := len(d.Buffers[i].Keys); k > 0 && k != len(d.NICs) {
				t.Errorf("%d keys of %d NICs", k, len(d.NICs))
			}
			if x := d.Buffers[i]; x.Offset < 0 || x.Length <= 0 || x.Offset+x.Length < 0 || i > 0 && x.Offset < d.Buffers[i-1].Offset+d.Buffers[i-1].Length {
				t.Errorf("buffers %+v", d.Buffers)
			}
		}
		out, err := json.Marshal(d)
		must(t, err)
		if _, err := ParseDescription(out); err != nil {
			t.Errorf("the decoded message does not decode again: %v", err)
		}
	})
}

// script is a connection whose peer has sent fixed bytes and closed it.
type script struct {
	net.Conn
	in *bytes.Reader
}

func (s *script) Read(p []byte) (int, error)         { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error)        { return len(p), nil }
func (s *script) Close() error                       { return nil }
func (s *script) SetReadDeadline(_ time.Time) error  { return nil }
func (s *script) SetWriteDeadline(_ time.Time) error { return nil }

// FuzzServer checks that the server closes the connection after any input, that it releases all
// memory, and that it writes only to registered memory.
func FuzzServer(f *testing.F) {
	id := share.NewIdentity()
	f.Add(true, []byte{18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, '{', '}'})
	var b bytes.Buffer
	q := request{op: Write, id: 1, segment: 1, shape: shape{[]plane{{0, 0, 8}}, pageZero}}
	must(f, q.write(&b))
	f.Add(false, append(slices.Clone(b.Bytes()), "12345678"...))
	f.Add(false, b.Bytes())
	e := engine(f, Options{})
	there := host(f, 3*4096)
	s, err := e.Publish(f.Context(), "kv")
	must(f, err)
	middle, err := mem.NewRegion(mem.RegionSpec{
		Kind: mem.KindHost, Device: mem.NoDevice, Len: 4096, CPU: there.CPU() + 4096, Bytes: there.Bytes()[4096:8192:8192],
	})
	must(f, err)
	_, err = s.Register(f.Context(), middle, RegisterOptions{})
	must(f, err)
	none := make([]byte, 4096)
	f.Fuzz(func(t *testing.T, isControl bool, b []byte) {
		h := hello{purpose: forControl, from: id}
		if !isControl {
			h = hello{purpose: forData, from: id, to: e.Identity(), conn: 1}
		}
		c := newServedConn(e, &script{in: bytes.NewReader(append(h.encode(), b...))})
		if err := e.serve(c); err == nil {
			t.Error("serve ended without an error")
		}
		c.end()
		must(t, s.table.Remove(t.Context(), 0)) // no request uses the memory
		must(t, s.table.Add(0, middle))
		if len(e.served.conns) != 0 || !bytes.Equal(there.Bytes()[:4096], none) || !bytes.Equal(there.Bytes()[8192:], none) {
			t.Errorf("%d lanes are left, or bytes outside the registered memory changed", len(e.served.conns))
		}
		for len(e.inbox.ready) > 0 {
			<-e.inbox.ready
		}
	})
}

// TestHostile checks that malformed messages, hellos for another engine and requests for
// unregistered memory are refused and counted.
func TestHostile(t *testing.T) {
	there := host(t, 1<<16)
	p := newPair(t, Options{}, Options{}, there)
	id, own := share.NewIdentity(), p.target.Identity()
	good := hello{purpose: forData, from: id, to: own, conn: 1}
	welcome := func(h []byte) (status, io.Reader, io.Writer) {
		c := dialRaw(t, p.target.Address())
		_, err := c.Write(h)
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(patience)))
		b := make([]byte, welcomeBytes)
		_, err = io.ReadFull(c, b)
		must(t, err)
		s, _, err := decodeWelcome(b)
		must(t, err)
		return s, c, c
	}
	other := hello{purpose: forData, from: id, to: id, conn: 2}
	newer := good.encode()
	newer[4]++
	for name, tt := range map[string]struct {
		hello []byte
		want  status
	}{"another engine": {other.encode(), statusOther}, "another version": {newer, statusFailed}, "nonsense": {make([]byte, helloBytes), statusInvalid}} {
		if got, _, _ := welcome(tt.hello); got != tt.want {
			t.Errorf("%s: status %d, want %d", name, got, tt.want)
		}
	}
	s, r, w := welcome(good.encode())
	if s != statusOK {
		t.Fatalf("status %d", s)
	}
	if retry, _, _ := welcome(good.encode()); retry != statusInvalid {
		t.Errorf("a lane of the same number: %d", retry)
	}
	for name, q := range map[string]request{
		"beyond the region": {op: Read, segment: p.segment.number, shape: shape{[]plane{{1, 0, 1 << 16}}, pageZero}},
		"far away":          {op: Read, segment: p.segment.number, shape: shape{[]plane{{1 << 60, 0, 1}}, pageZero}},
		"one page too far":  {op: Read, segment: p.segment.number, shape: shape{[]plane{{0, 4096, 4096}}, []uint32{0, 16}}},
		"no such segment":   {op: Read, segment: 99, shape: shape{[]plane{{0, 0, 1}}, pageZero}},
	} {
		must(t, q.write(w))
		got, err := readReply(r)
		must(t, err)
		if got.status != statusNotFound || len(got.text) == 0 {
			t.Errorf("%s: status %d, %q", name, got.status, got.text)
		}
	}
	// The payload of a refused write is read to its end and not stored.
	q := request{op: Write, segment: p.segment.number, shape: shape{[]plane{{0, 0, 10}, {1 << 16, 0, 10}}, pageZero}}
	must(t, q.write(w))
	_, err := w.Write(bytes.Repeat([]byte{7}, 20))
	must(t, err)
	got, err := readReply(r)
	must(t, err)
	if got.status != statusNotFound || there.Bytes()[0] != 0 {
		t.Errorf("status %d, and memory has %d", got.status, there.Bytes()[0])
	}
	if st := p.target.Stats(); st.Refused != 5 || st.Malformed < 2 {
		t.Errorf("stats %+v", st)
	}
	wantErr(t, "a name", func() error { _, err := p.target.Publish(t.Context(), "a b"); return err }(), errdefs.ErrInvalid)
}
