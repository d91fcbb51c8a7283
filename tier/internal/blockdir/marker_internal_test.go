package blockdir

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// If a marker had a flipped bit, its directory was taken for one of another identity, and the
// advice was to remove it.
func TestDefectFlippedMarkerIsAnotherIdentity(t *testing.T) {
	layout, err := block.NewLayout([]int64{4096, 100})
	if err != nil {
		t.Fatal(err)
	}
	id := block.Identity{Model: "m", Revision: noSum, DType: "bfloat16", Layout: block.LayoutKV}
	m := NewMarker(Files, block.Formats{{Layout: layout, Identity: id.Digest()}}, []block.Identity{id})
	good, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseMarker(good); err != nil {
		t.Fatal(err)
	}
	newer := bytes.Replace(withSum(good, sumIn(t, good), noSum), []byte(`"version": 1`), []byte(`"version": 9`), 1)
	if _, err := ParseMarker(withSum(newer, noSum, sumOf(newer))); !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("a newer version: %v", err)
	}
	damaged := 0
	for i := range 8 * len(good) {
		b := bytes.Clone(good)
		b[i/8] ^= 1 << (i % 8)
		got, err := ParseMarker(b)
		switch {
		case errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch):
			damaged++
		case err != nil:
			t.Errorf("bit %d of %q: %v", i%8, b[max(0, i/8-20):min(len(b), i/8+20)], err)
		case got.Directory != m.Directory || got.Check(m.Formats(), nil) != nil: // only the name of the checksum may be damaged
			t.Errorf("bit %d of %q: another marker", i%8, b[max(0, i/8-20):min(len(b), i/8+20)])
		}
	}
	if least := 8 * (len(good) - len("sum")); damaged < least {
		t.Errorf("%d of %d flipped bits are found, at least %d expected", damaged, 8*len(good), least)
	}
}

// sumIn returns the checksum in a marker.
func sumIn(t *testing.T, marker []byte) string {
	t.Helper()
	var j struct{ Sum string }
	if err := json.Unmarshal(marker, &j); err != nil || len(j.Sum) != len(noSum) {
		t.Fatalf("no sum in %s, %v", marker, err)
	}
	return j.Sum
}

func FuzzParseMarker(f *testing.F) {
	layout, err := block.NewLayout([]int64{4096, 100})
	if err != nil {
		f.Fatal(err)
	}
	id := block.Identity{Model: "m", DType: "bfloat16", Layout: block.LayoutKV, Salt: "s"}
	m := NewMarker(Files, block.Formats{{Layout: layout, Identity: id.Digest()}}, []block.Identity{id})
	good, err := m.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, change := range [][2]string{
		{`"version": 1`, `"version": 2`},
		{`"version": 1`, `"version": null`},
		{`4096`, `-4096`},
		{`4096`, `1e30`},
		{`100`, ``},
		{m.Directory, "x"},
		{m.Groups[0].Digest.String(), ""},
		{`"identity"`, `"other"`},
	} {
		f.Add(bytes.Replace(good, []byte(change[0]), []byte(change[1]), 1))
	}
	other := id
	other.Group, other.Layers = "sliding", "1-3"
	several, err := (&Marker{Kind: Log, Version: groupsVersion, Directory: m.Directory, Groups: append(m.Groups, Group{Digest: other.Digest(), Layout: layout})}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(several)
	// Two groups with the same identity.
	f.Add(bytes.Replace(several, []byte(other.Digest().String()), []byte(id.Digest().String()), 1))
	f.Add([]byte("null"))
	f.Add([]byte(`{"format": null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMarker(b)
		if err != nil {
			if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch) {
				t.Fatalf("%v is neither ErrCorrupt nor ErrMismatch", err)
			}
			return
		}
		// An accepted marker is complete: it can be written and read again.
		b, err = m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		after, err := ParseMarker(b)
		if err != nil || after.Directory != m.Directory || after.Check(m.Formats(), nil) != nil {
			t.Fatalf("%+v became %+v, %v", m, after, err)
		}
	})
}
