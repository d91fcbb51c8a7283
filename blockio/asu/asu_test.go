package asu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// dwords returns the bytes of a vector in the notation of the format's tables.
func dwords(d ...uint32) (b []byte) {
	for _, v := range d {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

var (
	key  = Key{1, 2, 3, 4, 5, 6, 7, 8}
	far  = Piece{Key: key, Offset: 0x400, Length: 0x200, Addr: 0x1122334455667000, MemoryKey: 0xaabbccdd}
	long = Piece{Key: Key{9}, Offset: 0, Length: MaxLength, Addr: 1 << 40, MemoryKey: 1}
)

type vector struct {
	name    string
	request Request
	packed  []byte
}

func vectors() []vector {
	return []vector{
		{"store", Request{Op: OpStore, CommandID: 0x1234, Namespace: 7, DSpec: 5, DType: 3, LimitedRetry: true, ValueLength: 0x1f0, Pieces: []Piece{far}}, dwords(
			0x1234c001, 7, 0x00006500, 0, 0, 0, 0x55667000, 0x11223344, 0xdd000200, 0x40aabbcc, 0x400, 0x800001f0, 0x04030201, 0x08070605, 0, 0)},
		{"retrieve", Request{Op: OpRetrieve, CommandID: 1, Namespace: 7, ValueLength: maxField, Pieces: []Piece{long}}, dwords(
			0x0001c002, 7, 0, 0, 0, 0, 0, 0x100, 0x01fffe00, 0x40000000, 0, 0x00ffffff, 9, 0, 0, 0)},
		{"batch store", Request{Op: OpBatchStore, CommandID: 0xffff, Namespace: 1, DSpec: 31, DType: 7, ResponseAddr: 0x0102030405060708, ResponseKey: 0x99, Pieces: []Piece{far, long}}, dwords(
			0xffffe045, 1, 0x0000ff00, 0x05060708, 0x01020304, 0x99, 0, 0, 72, 0x01000000, 2, 0, 0, 0, 0, 0,
			0x400, 0x04030201, 0x08070605, 0, 0, 0x55667000, 0x11223344, 0xdd000200, 0x40aabbcc,
			0, 9, 0, 0, 0, 0, 0x100, 0x01fffe00, 0x40000000)},
		{"batch retrieve", Request{Op: OpBatchRetrieve, CommandID: 2, Pieces: []Piece{long}}, dwords(
			0x0002c046, 0, 0, 0, 0, 0, 0, 0, 36, 0x01000000, 1, 0, 0, 0, 0, 0,
			0, 9, 0, 0, 0, 0, 0x100, 0x01fffe00, 0x40000000)},
		{"delete", Request{Op: OpDelete, CommandID: 3, Namespace: 2, ResponseAddr: 0x40, ResponseKey: 8, Keys: []Key{key}}, dwords(
			0x0003e008, 2, 0, 0x40, 0, 8, 0, 0, 16, 0x01000000, 1, 0, 0, 0, 0, 0, 0x04030201, 0x08070605, 0, 0)},
		{"exist", Request{Op: OpExist, CommandID: 4, ExistBits: true, Keys: []Key{key, {9}}}, dwords(
			0x0004c00c, 0, 0, 0, 0, 0, 0, 0, 32, 0x01000000, 0x00010002, 0, 0, 0, 0, 0, 0x04030201, 0x08070605, 0, 0, 9, 0, 0, 0)},
		{"keep-alive", Request{Op: OpKeepAlive, CommandID: 5, Namespace: 3}, dwords(
			0x000500f4, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)},
	}
}

func TestRequestsEqualTheTables(t *testing.T) {
	var r Request
	for _, v := range vectors() {
		b, err := v.request.Append([]byte("x"))
		must(t, err)
		if !bytes.Equal(b[1:], v.packed) {
			t.Errorf("%s is packed as\n%x, want\n%x", v.name, b[1:], v.packed)
		}
		must(t, r.Decode(v.packed))
		if !r.equal(&v.request) {
			t.Errorf("%s is decoded as %+v, want %+v", v.name, r, v.request)
		}
	}
}

func TestEveryBitOfARequestCounts(t *testing.T) {
	var r Request
	for _, v := range vectors() {
		for i := range v.packed {
			for bit := range 8 {
				b := slices.Clone(v.packed)
				b[i] ^= 1 << bit
				if r.Decode(b) != nil {
					continue
				}
				if again, err := r.Append(nil); err != nil || !bytes.Equal(again, b) {
					t.Errorf("%s: bit %d of byte %d is ignored (%v)", v.name, bit, i, err)
				}
			}
		}
		for n := range v.packed {
			if r.Decode(v.packed[:n]) == nil {
				t.Errorf("%s: its first %d bytes are a request", v.name, n)
			}
		}
	}
}

func TestLimitsOfBatches(t *testing.T) {
	for _, c := range []struct {
		op   Op
		most int
	}{{OpBatchStore, 110}, {OpBatchRetrieve, 110}, {OpDelete, 254}, {OpExist, 256}} {
		r := Request{Op: c.op, CommandID: 1}
		add := func() {
			if c.op.pieces() {
				r.Pieces = append(r.Pieces, far)
			} else {
				r.Keys = append(r.Keys, key)
			}
		}
		if _, err := r.Append(nil); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("operation %#x without entries: %v", c.op, err)
		}
		for range c.most {
			add()
		}
		b, err := r.Append(nil)
		must(t, err)
		if len(b) > MaxPackedBytes || MaxPackedBytes != 4160 {
			t.Errorf("operation %#x of %d entries has %d bytes, a send slot %d", c.op, c.most, len(b), MaxPackedBytes)
		}
		add()
		if _, err := r.Append(nil); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("operation %#x of %d entries: %v", c.op, r.Count(), err)
		}
	}
}

func TestRequestsThatTheFormatDoesNotAllow(t *testing.T) {
	for what, change := range map[string]func(*Request){
		"no command id":             func(r *Request) { r.CommandID = 0 },
		"an unknown operation":      func(r *Request) { r.Op = 3 },
		"dspec of 6 bits":           func(r *Request) { r.DSpec = 32 },
		"dtype of 4 bits":           func(r *Request) { r.DType = 8 },
		"a response key alone":      func(r *Request) { r.ResponseAddr = 0 },
		"a response address alone":  func(r *Request) { r.ResponseKey = 0 },
		"a value of a batch":        func(r *Request) { r.ValueLength = 1 },
		"bits of exist":             func(r *Request) { r.ExistBits = true },
		"keys":                      func(r *Request) { r.Keys = []Key{key} },
		"an offset between sectors": func(r *Request) { r.Pieces[1].Offset = 511 },
		"a length between sectors":  func(r *Request) { r.Pieces[1].Length = 513 },
		"no length":                 func(r *Request) { r.Pieces[1].Length = 0 },
		"a length of 25 bits":       func(r *Request) { r.Pieces[1].Length = 1 << 24 },
		"no address":                func(r *Request) { r.Pieces[1].Addr = 0 },
		"a zero key":                func(r *Request) { r.Pieces[1].Key = Key{} },
		"a key of 9 bytes":          func(r *Request) { r.Pieces[1].Key[8] = 1 },
	} {
		r := vectors()[2].request
		r.Pieces = slices.Clone(r.Pieces)
		change(&r)
		if b, err := r.Append([]byte("x")); !errors.Is(err, errdefs.ErrInvalid) || string(b) != "x" {
			t.Errorf("%s: packed as %x, %v", what, b, err)
		}
	}
	single := vectors()[0].request
	single.ResponseAddr, single.ResponseKey = 1, 1
	if _, err := single.Append(nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a single store with a response address: %v", err)
	}
}

func TestCompletionsEqualTheTables(t *testing.T) {
	v := vectors()
	store, remove, exist := v[2].request, v[4].request, v[5].request
	three := Request{Op: OpBatchStore, CommandID: 0xffff, Pieces: []Piece{far, long, far}}
	prefix := Request{Op: OpExist, CommandID: 4, Keys: []Key{key, {9}, {8}}}
	for _, c := range []struct {
		name    string
		request *Request
		status  Status
		entries []EntryStatus
		packed  []byte
	}{
		{"ok", &store, StatusOK, []EntryStatus{EntryOK, EntryOK}, append(dwords(0, 0, 0, 0x0000ffff), 0)},
		{"no data, failed, retry", &three, StatusResults, []EntryStatus{EntryNoData, EntryFailed, EntryRetry}, append(dwords(0, 0, 0, 0x732<<17|0xffff), 0x24, 0x01)},
		{"busy", &store, StatusBusy, nil, append(dwords(0, 0, 0, 0x731<<17|0xffff), 0)},
		{"a failed delete", &remove, StatusResults, []EntryStatus{EntryFailed}, append(dwords(0, 0, 0, 0x732<<17|3), 1)},
		{"bits", &exist, StatusResults, []EntryStatus{EntryNoKey, EntryOK}, append(dwords(1, 0, 0, 0x732<<17|4), 2)},
		{"all exist", &exist, StatusOK, []EntryStatus{EntryOK, EntryOK}, append(dwords(2, 0, 0, 4), 3)},
		{"the first two exist", &prefix, StatusResults, []EntryStatus{EntryOK, EntryOK, EntryNoKey}, append(dwords(2, 0, 0, 0x732<<17|4), 3)},
	} {
		in := Completion{CommandID: c.request.CommandID, Status: c.status, Entries: c.entries}
		b, err := in.Append(nil, c.request)
		must(t, err)
		if !bytes.Equal(b, c.packed) {
			t.Errorf("%s is packed as\n%x, want\n%x", c.name, b, c.packed)
		}
		var out Completion
		must(t, out.Decode(c.packed, c.request))
		if out.Status != c.status || !slices.Equal(out.Entries, c.entries) {
			t.Errorf("%s is decoded as %+v", c.name, out)
		}
		other := *c.request
		other.CommandID++
		if err := out.Decode(c.packed, &other); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: decoded for another command: %v", c.name, err)
		}
		if err := out.Decode(c.packed[:len(c.packed)-1], c.request); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: decoded without its end: %v", c.name, err)
		}
	}
}

func TestCompletionsThatDoNotAgree(t *testing.T) {
	v := vectors()
	prefix := Request{Op: OpExist, CommandID: 4, Keys: []Key{key, {9}}}
	for what, c := range map[string]struct {
		request *Request
		in      Completion
	}{
		"another command":         {&v[4].request, Completion{CommandID: 4, Entries: []EntryStatus{EntryOK}}},
		"too few entries":         {&v[2].request, Completion{CommandID: 0xffff, Entries: []EntryStatus{EntryOK}}},
		"entries of a failure":    {&v[4].request, Completion{CommandID: 3, Status: StatusBusy, Entries: []EntryStatus{EntryOK}}},
		"ok with a failed entry":  {&v[4].request, Completion{CommandID: 3, Entries: []EntryStatus{EntryFailed}}},
		"a retry of delete":       {&v[4].request, Completion{CommandID: 3, Status: StatusResults, Entries: []EntryStatus{EntryRetry}}},
		"no prefix without bits":  {&prefix, Completion{CommandID: 4, Status: StatusResults, Entries: []EntryStatus{EntryNoKey, EntryOK}}},
		"results that are all ok": {&v[4].request, Completion{CommandID: 3, Status: StatusResults, Entries: []EntryStatus{EntryOK}}},
	} {
		if b, err := c.in.Append(nil, c.request); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: packed as %x, %v", what, b, err)
		}
	}
	if err := Status(0x555).Err(); !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("an unknown status: %v", err)
	}
	if err := StatusNoKey.Err(); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("no key: %v", err)
	}
}

func FuzzRequest(f *testing.F) {
	for _, v := range vectors() {
		f.Add(v.packed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		if r.Decode(b) == nil {
			if again, err := r.Append(nil); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%+v is packed as %x, not %x: %v", r, again, b, err)
			}
		}
	})
}

func FuzzCompletion(f *testing.F) {
	f.Add(append(dwords(0, 0, 0, 0x732<<17|0xffff), 0x24))
	f.Add(append(dwords(2, 0, 0, 4), 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range vectors() {
			var c, again Completion
			if c.Decode(b, &v.request) != nil {
				continue
			}
			if n := len(c.Entries); n != 0 && n != v.request.Count() {
				t.Errorf("%d entries of %d", n, v.request.Count())
			}
			packed, err := c.Append(nil, &v.request)
			if err != nil {
				continue // a server may send values that kvlane does not send
			}
			must(t, again.Decode(packed, &v.request))
			if !slices.Equal(again.Entries, c.Entries) || again.Status != c.Status {
				t.Errorf("%+v is packed as %x", c, packed)
			}
		}
	})
}
