package blockdir_test

import (
	"bytes"
	"errors"
	"maps"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// A damaged byte loses at most one entry, and every damage is reported.
func TestPinsOfADamagedList(t *testing.T) {
	set := blockdir.PinSet{{1}: true, {2}: true, {3, 4}: true}
	b := set.Encode()
	if got, err := blockdir.ParsePins(b); err != nil || !maps.Equal(got, set) {
		t.Fatalf("%v, %v", got, err)
	}
	if got, err := blockdir.ParsePins(blockdir.PinSet{}.Encode()); err != nil || len(got) != 0 {
		t.Errorf("an empty list: %v, %v", got, err)
	}
	check := func(what string, at int, bad []byte, lost int) {
		t.Helper()
		got, err := blockdir.ParsePins(bad)
		if !errors.Is(err, errdefs.ErrCorrupt) || len(got) < len(set)-lost {
			t.Errorf("%s %d: %v, %v", what, at, got, err)
		}
		for key := range got {
			if !set[key] {
				t.Errorf("%s %d: block %s was not pinned", what, at, key)
			}
		}
	}
	for at := range b {
		bad := bytes.Clone(b)
		bad[at] ^= 4
		check("changed byte", at, bad, 2) // the end of a line joins two entries
		check("first bytes", at, b[:at], len(set))
	}
	check("repeated entry", 0, append(bytes.Clone(b), b[len(b)-74:]...), 0)
}

func FuzzParsePins(f *testing.F) {
	f.Add(blockdir.PinSet{{1}: true, {2}: true}.Encode())
	f.Add([]byte("kvlane pinned blocks 1 0\n"))
	f.Add(bytes.TrimSuffix(blockdir.PinSet{{1}: true}.Encode(), []byte("\n")))
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := blockdir.ParsePins(b)
		if (err == nil) != bytes.Equal(set.Encode(), b) {
			t.Errorf("%q is parsed as %q, %v", b, set.Encode(), err)
		}
		if again, err := blockdir.ParsePins(set.Encode()); err != nil || !maps.Equal(again, set) {
			t.Errorf("%v, %v", again, err)
		}
	})
}

// A list has at most MaxPins blocks.
func TestMaxPins(t *testing.T) {
	set, keys := make(blockdir.PinSet), []block.Key(nil)
	for i := range blockdir.MaxPins {
		set[block.Key{byte(i), byte(i >> 8), byte(i >> 16)}] = true
	}
	limit := blockdir.PinLimit{Has: func(block.Key) (bool, error) { return true, nil }}
	if err := limit.Add(set, keys); err != nil {
		t.Error(err)
	}
	keys = append(keys, block.Key{31: 1})
	if err := limit.Add(set, keys); !errors.Is(err, blockdir.ErrPinLimit) || len(set) != blockdir.MaxPins {
		t.Errorf("%d blocks, %v", len(set), err)
	}
	// Pins of missing blocks give way.
	limit.Has = func(key block.Key) (bool, error) { return key[0] > 0, nil }
	if err := limit.Add(set, keys); err != nil || set[block.Key{}] || !set[keys[0]] {
		t.Errorf("%d blocks, %v", len(set), err)
	}
	if got, err := blockdir.ParsePins(set.Encode()); err != nil || !maps.Equal(got, set) {
		t.Errorf("%d blocks, %v", len(got), err)
	}
}
