package block_test

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// twoGroups returns the formats of two page groups whose blocks have different lengths.
func twoGroups(tb testing.TB) block.Formats {
	tb.Helper()
	full, sliding := someIdentity(), someIdentity()
	full.Group, full.Layers = "full", block.FormatLayers([]int{0, 4})
	sliding.Group, sliding.Layers = "sliding", block.FormatLayers([]int{1, 2, 3})
	return block.Formats{
		{Layout: layout(tb, 8192, 8192), Identity: full.Digest()},
		{Layout: layout(tb, 4096, 4096, 4096), Identity: sliding.Digest()},
	}
}

// A store with a single group has the same keys as releases without page groups.
func TestKeysOfOneGroupHaveNoTag(t *testing.T) {
	id := someIdentity()
	one := block.Formats{{Layout: layout(t, 4096), Identity: id.Digest()}}
	key := id.Key([]byte("engine block hash"))
	if got := one.Key(0, []byte("engine block hash")); got != key {
		t.Errorf("key %s, want %s", got, key)
	}
	if one.Group(key) != 0 || one.Group(block.Key{1}) != 0 {
		t.Error("a key is of another group than the only one")
	}
}

func TestDefectKeyOfAnotherGroupVerifies(t *testing.T) {
	fs := twoGroups(t)
	if err := fs.Validate(); err != nil {
		t.Fatal(err)
	}
	keys := []block.Key{fs.Key(0, []byte("a")), fs.Key(1, []byte("a"))}
	if keys[0] == keys[1] {
		t.Error("two groups have the same key")
	}
	for g, key := range keys {
		if fs.Group(key) != g || fs.ImageBytes(key) != fs[g].Layout.ImageBytes() {
			t.Errorf("key %d is of group %d with %d bytes", g, fs.Group(key), fs.ImageBytes(key))
		}
		image := make([]byte, fs.ImageBytes(key))
		if err := fs[g].Seal(image, key); err != nil {
			t.Fatal(err)
		}
		if err := fs.Verify(image, key); err != nil {
			t.Error(err)
		}
		if err := fs.Verify(image, keys[1-g]); err == nil {
			t.Errorf("an image of group %d verifies as one of the other group", g)
		}
	}
	// An image with the right length and key, but with the identity of the other group.
	wrong := block.Format{Layout: fs[0].Layout, Identity: fs[1].Identity}
	image := make([]byte, fs.ImageBytes(keys[0]))
	if err := wrong.Seal(image, keys[0]); err != nil {
		t.Fatal(err)
	}
	if err := fs.Verify(image, keys[0]); !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("an image of the other group's identity: %v", err)
	}
	none := keys[0]
	none[block.KeyBytes-1]++
	if _, err := fs.Of(none); !errors.Is(err, errdefs.ErrInvalid) || fs.Group(none) != -1 || fs.ImageBytes(none) != 0 || fs.Verify(image, none) == nil {
		t.Errorf("a key of no group: %v", err)
	}
	if fs.MaxImageBytes() != 4096+2*8192 {
		t.Errorf("the longest image has %d bytes", fs.MaxImageBytes())
	}
}

func TestFormatsRefuse(t *testing.T) {
	fs := twoGroups(t)
	alike := fs[1]
	alike.Identity[0]++ // gives it the same tag
	for name, fs := range map[string]block.Formats{
		"none":      nil,
		"no layout": {{Identity: fs[0].Identity}},
		"twice":     {fs[0], fs[0]},
		"one tag":   {fs[0], fs[1], alike},
		"too many":  make(block.Formats, block.MaxGroups+1),
	} {
		if err := fs.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFormatLayers(t *testing.T) {
	for want, layers := range map[string][]int{"": nil, "7": {7}, "0-1": {0, 1}, "0-3,8,10-11": {0, 1, 2, 3, 8, 10, 11}} {
		if got := block.FormatLayers(layers); got != want {
			t.Errorf("%v is %q, want %q", layers, got, want)
		}
	}
}

// Group and layers are part of the identity, and cannot be confused with each other.
func TestGroupIsPartOfTheIdentity(t *testing.T) {
	seen := make(map[block.Digest]string)
	for _, v := range [][2]string{{"", ""}, {"a", "1"}, {"a1", ""}, {"", "a1"}, {"b", "1"}, {"a", "2"}} {
		id := someIdentity()
		id.Group, id.Layers = v[0], v[1]
		if other, ok := seen[id.Digest()]; ok {
			t.Errorf("%q has the digest of %s", v, other)
		}
		seen[id.Digest()] = v[0] + "/" + v[1]
		if err := id.Validate(); (err == nil) != ((v[0] == "") == (v[1] == "")) {
			t.Errorf("%q: %v", v, err)
		}
	}
}

// A state has one plane for each layer. Its length does not depend on the tokens of a block.
func TestGeometryOfStates(t *testing.T) {
	g := block.Geometry{Model: "m", DType: "float32", Layers: 3, KVHeads: 8, HeadSize: 1024, BlockTokens: 512, TPSize: 2, TPRank: 1, State: true}
	l, err := g.Layout()
	if err != nil {
		t.Fatal(err)
	}
	id := g.Identity("", "")
	if err := id.Validate(); err != nil {
		t.Error(err)
	}
	if g.PlanesPerLayer() != 1 || g.PlaneBytes() != 4*1024*4 || l.ShardBytes(2) != 4*1024*4 || id.Layout != block.LayoutState || id.HeadFirst != 4 {
		t.Errorf("%d planes of %d bytes, %v, %+v", g.PlanesPerLayer(), g.PlaneBytes(), l, id)
	}
	g.MLA = true
	if err := g.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("latents and states: %v", err)
	}
}
