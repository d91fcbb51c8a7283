package blockdir

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

func FuzzParseMarker(f *testing.F) {
	layout, err := block.NewLayout([]int64{4096, 100})
	if err != nil {
		f.Fatal(err)
	}
	id := block.Identity{Model: "m", DType: "bfloat16", Layout: block.LayoutKV, Salt: "s"}
	m := NewMarker(Files, block.Formats{{Layout: layout, Identity: id.Digest()}}, []block.Identity{id})
	good, err := m.encode()
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
	several, err := (&Marker{Sort: Log, Version: groupsVersion, Directory: m.Directory, Groups: append(m.Groups, Group{Digest: other.Digest(), Layout: layout})}).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(several)
	f.Add(bytes.Replace(several, []byte(other.Digest().String()), []byte(id.Digest().String()), 1)) // two groups of one identity
	f.Add([]byte("null"))
	f.Add([]byte(`{"format": null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMarker(b)
		if err != nil {
			if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch) {
				t.Fatalf("%v is neither ErrCorrupt nor ErrMismatch", err)
			}
			return
		}
		// What was accepted is complete: it can be written and read again.
		b, err = m.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseMarker(b)
		if err != nil || again.Directory != m.Directory || again.Check(m.Formats(), nil) != nil {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}
