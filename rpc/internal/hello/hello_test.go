package hello_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rpc/internal/hello"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var gid = rdma.GID{0xfe, 0x80, 14: 0xab, 15: 0xcd}

func valid(v hello.Version) hello.Hello {
	return hello.Hello{Version: v, BlockBytes: 8160, SendQueue: 128, RecvQueue: 0x1234, LID: 0x0102, GID: gid, QPNum: 0xa1b2c3d4}
}

func encode(t *testing.T, h hello.Hello) []byte {
	t.Helper()
	b, err := h.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The bytes of both versions, field by field.
func TestHelloFieldByField(t *testing.T) {
	v2 := "52444d41 0028 0002 0001 00001fe0 0080 1234 0102 fe80000000000000000000000000abcd a1b2c3d4"
	v3 := "52444d33 00000023 08e03f 108001 18b424 208202 2a10fe80000000000000000000000000abcd 30d487cb8d0a"
	extended := "52444d33 00000029" + v3[len("52444d33 00000023"):] + "c23e04 0809 1010"
	with := valid(hello.V3)
	with.Extension = &hello.Extension{QPNum: 9, Reads: 16}
	for want, h := range map[string]hello.Hello{v2: valid(hello.V2), v3: valid(hello.V3), extended: with} {
		b := encode(t, h)
		want := unhex(t, want)
		if len(want) > 8 && h.Version == hello.V3 {
			want[7] = byte(len(want) - 8)
		}
		if !bytes.Equal(b, want) {
			t.Errorf("%x\nnot %x", b, want)
		}
		r := bytes.NewReader(append(bytes.Clone(b), "rest"...))
		got, err := hello.Read(r)
		if err != nil || !reflect.DeepEqual(got, h) || r.Len() != 4 {
			t.Errorf("read %+v, %v, %d bytes left", got, err, r.Len())
		}
	}
}

// The replies of servers without RDMA, as they were captured.
func TestRefusals(t *testing.T) {
	for v, want := range map[hello.Version]string{
		hello.V2: "52444d41 0028 ffff" + strings.Repeat("00", 32),
		hello.V3: "52444d33 0000001c 0800 1000 1800 2000 2a10" + strings.Repeat("00", 16) + "3000",
	} {
		b := hello.Refusal(v)
		if !bytes.Equal(b, unhex(t, want)) {
			t.Errorf("version %d: %x", v, b)
		}
		if h, err := hello.Read(bytes.NewReader(b)); !errors.Is(err, errdefs.ErrInvalid) || h.Version != v {
			t.Errorf("version %d: %v", v, err)
		}
	}
	// A server in RDMA mode.
	b := unhex(t, "52444d41 0028 0000"+strings.Repeat("00", 32))
	if _, err := hello.Read(bytes.NewReader(b)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("hello_ver 0: %v", err)
	}
}

// Longer hellos of version 2 are read to their end. A sender never makes one.
func TestLongHelloIsDrained(t *testing.T) {
	for _, n := range []int{41, 4096} {
		b := append(encode(t, valid(hello.V2)), make([]byte, n-40)...)
		b[4], b[5] = byte(n>>8), byte(n)
		r := bytes.NewReader(append(b, 'x'))
		if h, err := hello.Read(r); err != nil || h != valid(hello.V2) || r.Len() != 1 {
			t.Errorf("%d bytes: %+v, %v, %d left", n, h, err, r.Len())
		}
	}
}

// v3 returns a hello of version 3 with fields changed: nil removes one.
func v3(change map[protowire.Number]any) []byte {
	values := map[protowire.Number]any{1: 8160, 2: 16, 3: 16, 4: 1, 5: gid[:], 6: 7}
	for n, v := range change {
		values[n] = v
	}
	var m []byte
	for n := protowire.Number(1); n <= 1001; n++ {
		switch v := values[n].(type) {
		case int:
			m = protowire.AppendVarint(protowire.AppendTag(m, n, protowire.VarintType), uint64(v))
		case []byte:
			m = protowire.AppendBytes(protowire.AppendTag(m, n, protowire.BytesType), v)
		case float64:
			m = protowire.AppendFixed64(protowire.AppendTag(m, n, protowire.Fixed64Type), uint64(v))
		}
	}
	return append([]byte{'R', 'D', 'M', '3', 0, 0, byte(len(m) >> 8), byte(len(m))}, m...)
}

func TestInvalidHellos(t *testing.T) {
	patched := func(at int, bytes ...byte) []byte {
		b := encode(t, valid(hello.V2))
		copy(b[at:], bytes)
		return b
	}
	type fields = map[protowire.Number]any
	for name, c := range map[string]struct {
		b    []byte
		want error // nil: valid
	}{
		"v2 version 3":           {patched(6, 0, 3), errdefs.ErrInvalid},
		"v2 implementation 2":    {patched(8, 0, 2), errdefs.ErrInvalid},
		"v2 blocks of 1023":      {patched(10, 0, 0, 3, 255), errdefs.ErrInvalid},
		"v2 blocks of 1024":      {patched(10, 0, 0, 4, 0), nil},
		"v2 send queue of 15":    {patched(14, 0, 15), errdefs.ErrInvalid},
		"v2 receive queue of 15": {patched(16, 0, 15), errdefs.ErrInvalid},
		"v2 queues of 16":        {patched(14, 0, 16, 0, 16), nil},
		"v2 length 39":           {patched(4, 0, 39), errdefs.ErrMismatch},
		"v2 length 4097":         {patched(4, 16, 1), errdefs.ErrMismatch},
		"magic":                  {patched(0, 'P', 'R', 'P', 'C'), errdefs.ErrMismatch},
		"v2 cut short":           {patched(0)[:39], io.ErrUnexpectedEOF},
		"v2 drain cut short":     {patched(4, 0, 41), io.EOF},
		"empty":                  {nil, io.EOF},

		"v3":                     {v3(nil), nil},
		"v3 no block size":       {v3(fields{1: nil}), errdefs.ErrInvalid},
		"v3 no send queue":       {v3(fields{2: nil}), errdefs.ErrInvalid},
		"v3 no receive queue":    {v3(fields{3: nil}), errdefs.ErrInvalid},
		"v3 no LID":              {v3(fields{4: nil}), errdefs.ErrInvalid},
		"v3 no GID":              {v3(fields{5: nil}), errdefs.ErrInvalid},
		"v3 no queue pair":       {v3(fields{6: nil}), errdefs.ErrInvalid},
		"v3 queue pair 0":        {v3(fields{6: 0}), errdefs.ErrInvalid},
		"v3 blocks of 1023":      {v3(fields{1: 1023}), errdefs.ErrInvalid},
		"v3 blocks beyond u32":   {v3(fields{1: 1<<32 + 8192}), errdefs.ErrInvalid},
		"v3 send queue of 15":    {v3(fields{2: 15}), errdefs.ErrInvalid},
		"v3 receive queue of 15": {v3(fields{3: 15}), errdefs.ErrInvalid},
		"v3 send queue of 65536": {v3(fields{2: 65536}), errdefs.ErrInvalid},
		"v3 receive queue 65536": {v3(fields{3: 65536}), errdefs.ErrInvalid},
		"v3 LID 65536":           {v3(fields{4: 65536}), errdefs.ErrInvalid},
		"v3 LID 65535":           {v3(fields{4: 65535}), nil},
		"v3 GID of 15 bytes":     {v3(fields{5: gid[:15]}), errdefs.ErrInvalid},
		"v3 GID of 17 bytes":     {v3(fields{5: append(gid[:], 1)}), errdefs.ErrInvalid},
		"v3 ECE":                 {v3(fields{7: []byte{8, 1, 16, 2, 24, 3}}), nil},
		"v3 unknown fields":      {v3(fields{8: 1, 100: []byte("x"), 999: 1.5, 1001: 2}), nil},
		"v3 number as fixed64":   {v3(fields{6: 1.0}), errdefs.ErrInvalid},
		"v3 extension":           {v3(fields{1000: []byte{8, 1, 16, 2, 24, 3}}), nil},
		"v3 extension without":   {v3(fields{1000: []byte{16, 2}}), errdefs.ErrInvalid},
		"v3 extension too large": {v3(fields{1000: []byte{8, 255, 255, 255, 255, 255, 1}}), errdefs.ErrInvalid},
		"v3 extension broken":    {v3(fields{1000: []byte{8}}), errdefs.ErrInvalid},
		"v3 not protobuf":        {append([]byte("RDM3\x00\x00\x00\x01"), 0xff), errdefs.ErrInvalid},
		"v3 field cut short":     {append([]byte("RDM3\x00\x00\x00\x01"), 0x08), errdefs.ErrInvalid},
		"v3 empty":               {[]byte("RDM3\x00\x00\x00\x00"), errdefs.ErrMismatch},
		"v3 8193 bytes":          {[]byte("RDM3\x00\x00\x20\x01"), errdefs.ErrMismatch},
		"v3 cut short":           {v3(nil)[:20], io.ErrUnexpectedEOF},
	} {
		r := bytes.NewReader(c.b)
		h, err := hello.Read(r)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, not %v", name, err, c.want)
		}
		if errors.Is(err, errdefs.ErrInvalid) && (r.Len() != 0 || h.Version == 0) {
			t.Errorf("%s: %d bytes left, version %d", name, r.Len(), h.Version)
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	h := valid(hello.V2)
	h.Extension = &hello.Extension{QPNum: 1}
	if _, err := h.Append(nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("an extension in version 2: %v", err)
	}
	h = valid(hello.V3)
	h.SendQueue = 70000
	if _, err := h.Append(nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a long queue: %v", err)
	}
}

func TestAck(t *testing.T) {
	for _, use := range []bool{false, true} {
		if got, err := hello.ReadAck(bytes.NewReader(hello.Ack(use))); err != nil || got != use {
			t.Errorf("%t: %t, %v", use, got, err)
		}
	}
	if got, err := hello.ReadAck(strings.NewReader("\xff\xff\xff\xfe")); err != nil || got {
		t.Errorf("bit 0 is clear: %t, %v", got, err)
	}
	if _, err := hello.ReadAck(strings.NewReader("abc")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a short ack: %v", err)
	}
	if !hello.Is([]byte("RDM3")) || !hello.Is([]byte("RDMA")) || hello.Is([]byte("PRPC")) {
		t.Error("magics are not told apart")
	}
}

// A hello that Read accepts is valid, and is the same after encoding it again.
func FuzzRead(f *testing.F) {
	for _, v := range []hello.Version{hello.V2, hello.V3} {
		h := valid(v)
		b, err := h.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(hello.Refusal(v))
	}
	f.Add(v3(map[protowire.Number]any{1000: []byte{8, 1, 16, 2}, 7: []byte{8, 1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := hello.Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		if !hello.Is(b[:hello.MagicBytes]) {
			t.Fatal("accepted another magic")
		}
		again, err := h.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := hello.Read(bytes.NewReader(again))
		if err != nil || !reflect.DeepEqual(got, h) {
			t.Fatalf("%+v, %v, not %+v", got, err, h)
		}
	})
}
