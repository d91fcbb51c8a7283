package placement_test

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc/internal/placement"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var example = placement.Message{
	Source:      placement.Memory{Ranges: []placement.Range{{Addr: 1 << 40, Bytes: 100, Key: 7}, {Addr: 4096, Bytes: 1, Key: math.MaxUint32}}},
	Destination: placement.Memory{Ranges: []placement.Range{{Addr: 1000, Bytes: 16, Key: 1, Stride: 64}, {Addr: 9000, Bytes: 8, Key: 2, Stride: 32}}, Pages: []uint32{3, 0}},
	Cancel:      -5,
}

func TestRoundTrip(t *testing.T) {
	other := protowire.AppendVarint(protowire.AppendTag(nil, 20, protowire.VarintType), 1) // a field of a later brpc
	m, err := placement.Decode(example.Append(other))
	if err != nil || !reflect.DeepEqual(*m, example) {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := placement.Decode(other); m != nil || err != nil {
		t.Errorf("without an extension: %+v, %v", m, err)
	}
	want := []placement.Range{{Addr: 1192, Bytes: 16, Key: 1}, {Addr: 9096, Bytes: 8, Key: 2}, {Addr: 1000, Bytes: 16, Key: 1}, {Addr: 9000, Bytes: 8, Key: 2}}
	if got := slices.Collect(example.Destination.Pieces()); !slices.Equal(got, want) {
		t.Errorf("pieces %+v", got)
	}
	if n, err := example.Destination.Bytes(); n != 48 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if got := slices.Collect(example.Source.Pieces()); !slices.Equal(got, example.Source.Ranges) {
		t.Errorf("pieces %+v", got)
	}
}

func TestRefused(t *testing.T) {
	for name, m := range map[string]placement.Memory{
		"empty range":      {Ranges: []placement.Range{{Addr: 1}}},
		"end of addresses": {Ranges: []placement.Range{{Addr: math.MaxUint64, Bytes: 1}}},
		"end of pages":     {Ranges: []placement.Range{{Addr: 1, Bytes: 1, Stride: 1 << 62}}, Pages: []uint32{4}},
		"long":             {Ranges: []placement.Range{{Bytes: placement.MaxBytes + 1}}},
		"long together":    {Ranges: []placement.Range{{Bytes: placement.MaxBytes}, {Bytes: 1}}},
		"long pages":       {Ranges: []placement.Range{{Bytes: placement.MaxBytes / 2, Stride: 1}}, Pages: []uint32{1, 2, 3}},
		"many pieces":      {Ranges: make([]placement.Range, 1025), Pages: make([]uint32, 1024)},
	} {
		if _, err := m.Bytes(); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		x := placement.Message{Source: m}
		if _, err := placement.Decode(x.Append(nil)); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s, decoded: %v", name, err)
		}
	}
	if _, err := placement.Decode([]byte{0xff}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("not protobuf: %v", err)
	}
}

// A decoded extension has valid memory, and is the same after encoding it again.
func FuzzDecode(f *testing.F) {
	f.Add(example.Append(nil))
	f.Add((&placement.Message{Cancel: 1}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := placement.Decode(b)
		if m == nil || err != nil {
			return
		}
		for _, x := range []*placement.Memory{&m.Source, &m.Destination} {
			total, err := x.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			sum := int64(0)
			for r := range x.Pieces() {
				if r.Addr+r.Bytes < r.Addr {
					t.Fatalf("%+v ends beyond the address space", r)
				}
				sum += int64(r.Bytes)
			}
			if len(x.Ranges) > 0 && (x.Pages == nil || len(x.Pages) > 0) && sum != total {
				t.Fatalf("%d bytes, not %d", sum, total)
			}
		}
		again, err := placement.Decode(m.Append(nil))
		if err != nil || len(m.Source.Ranges)+len(m.Destination.Ranges) > 0 && !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v, %v, not %+v", again, err, m)
		}
	})
}
