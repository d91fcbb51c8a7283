package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
)

// groupsConfig returns the configuration of a tier with two page groups whose blocks have different
// lengths.
func groupsConfig(t *testing.T) file.Config {
	t.Helper()
	c := config(t)
	l, err := block.NewLayout([]int64{40000, 3})
	if err != nil {
		t.Fatal(err)
	}
	full, sliding := llama(), llama()
	full.Group, full.Layers, sliding.Group, sliding.Layers = "full", "1", "sliding", "0,2-4"
	c.Identities = []block.Identity{full, sliding}
	c.Formats[0].Identity = full.Digest()
	c.Formats = append(c.Formats, block.Format{Layout: l, Identity: sliding.Digest()})
	return c
}

// groupKeys returns n keys, which belong to the groups in turn.
func groupKeys(c *file.Config, n int) []block.Key {
	var keys []block.Key
	for i := range n {
		keys = append(keys, c.Formats.Key(i%len(c.Formats), []byte{byte(i)}))
	}
	return keys
}

func putGroups(t *testing.T, tr *file.Tier, c *file.Config, keys []block.Key) {
	t.Helper()
	for i, key := range keys {
		put(t, tr, c.Formats[i%len(c.Formats)], key)
	}
}

func groupBytes(c *file.Config, n int) int64 {
	var bytes int64
	for i := range n {
		bytes += c.Formats[i%len(c.Formats)].Layout.ImageBytes()
	}
	return bytes
}

// A directory from a release without page groups can be opened. Its marker stays unchanged, and its
// block is found.
func TestDirectoryFromBeforeGroupsOpens(t *testing.T) {
	const key = "3b4bc829107fac4e559d02c79cba560ea53aba8ad0b2db64fd403e39e91921d0"
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/one-group")); err != nil {
		t.Fatal(err)
	}
	g := block.Geometry{Model: "test", Layers: 2, KVHeads: 1, HeadSize: 16, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	l, err := g.Layout()
	if err != nil {
		t.Fatal(err)
	}
	id := g.Identity("", "tenant")
	f := block.Formats{{Layout: l, Identity: id.Digest()}}
	k := f.Key(0, []byte("a block"))
	if k.String() != key {
		t.Fatalf("the block's key is %s now", k)
	}
	tr := open(t, file.Config{Dirs: []string{dir}, Formats: f, Identities: []block.Identity{id}})
	if err := get(t, tr, f[0], k); err != nil {
		t.Error(err)
	}
	before, err := os.ReadFile("testdata/one-group/kvlane.json")
	if err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "kvlane.json")); err != nil || string(after) != string(before) {
		t.Errorf("the marker changed, %v:\n%s", err, after)
	}
}

// The directory has files of several groups. Each file has the length of its group's image, and
// statistics count its actual bytes.
func TestGroupsShareADirectory(t *testing.T) {
	c := groupsConfig(t)
	all := groupKeys(&c, 10)
	tr := open(t, c)
	putGroups(t, tr, &c, all)
	for i, key := range all {
		if err := get(t, tr, c.Formats[i%2], key); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(path(c.Dirs[0], key)); err != nil || info.Size() != c.Formats[i%2].Layout.ImageBytes() {
			t.Errorf("block %d has a file of %d bytes, %v", i, info.Size(), err)
		}
	}
	if st := tr.Stats(); st.Blocks != 10 || st.Bytes != groupBytes(&c, 10) || st.WrittenBytes != st.Bytes || st.ReadBytes != st.Bytes {
		t.Errorf("%+v", st)
	}
	// The image of another group does not match the key, and a key of no group is refused.
	other := c.Formats[1]
	if err := tr.Put(t.Context(), all[0], image(t, other, all[0])); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("an image of another group: %v", err)
	}
	none := all[0]
	none[block.KeyBytes-1]++
	if err := tr.Put(t.Context(), none, image(t, other, none)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a key of no group: %v", err)
	}
	write(t, path(c.Dirs[0], all[0])[:len(path(c.Dirs[0], all[0]))-64]+none.String(), "")
	if s := state(t, tr, none); s == tier.Ready {
		t.Error("an empty file of a key of no group is a hit")
	}
	if err := os.Remove(path(c.Dirs[0], none)); err != nil {
		t.Error(err)
	}

	in, err := file.Inspect(t.Context(), c.Dirs[0])
	if err != nil || in.Blocks != 10 || in.Bytes != groupBytes(&c, 10) || len(in.ByGroup) != 2 || in.ByGroup[0].Blocks != 5 ||
		in.ByGroup[1].Bytes != 5*other.Layout.ImageBytes() || in.Marker.Groups[1].Identity.Group != "sliding" {
		t.Errorf("%+v, %v", in, err)
	}
	shards := make(map[int]int)
	if err := file.List(t.Context(), c.Dirs[0], func(e file.Entry) error {
		shards[e.Shards]++
		return nil
	}); err != nil || shards[4] != 5 || shards[2] != 5 {
		t.Errorf("blocks by shards: %v, %v", shards, err)
	}
	if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() || r.Bytes != groupBytes(&c, 10) {
		t.Errorf("%+v, %v", r, err)
	}
}

// The bound applies to the blocks of all groups together, both in a tier and in the gc command.
func TestBoundOfSeveralGroups(t *testing.T) {
	c := groupsConfig(t)
	longest := c.Formats.MaxImageBytes()
	c.MaxBytes = 6 * longest
	all := groupKeys(&c, 60)
	tr := open(t, c)
	for i, key := range all {
		put(t, tr, c.Formats[i%2], key)
		if st := tr.Stats(); st.Bytes > c.MaxBytes {
			t.Fatalf("%d bytes are held after %d blocks, more than %d", st.Bytes, i+1, c.MaxBytes)
		}
	}
	st := tr.Stats()
	if st.Evictions == 0 || st.Blocks < 6 {
		t.Errorf("%+v", st)
	}
	if _, err := tr.GC(t.Context(), 3*longest); err != nil || tr.Stats().Bytes > 3*longest {
		t.Errorf("%+v, %v", tr.Stats(), err)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	done, err := file.GC(t.Context(), c.Dirs[0], longest, nil)
	if err != nil || done.After > longest || done.After < longest/8 {
		t.Errorf("%+v, %v", done, err)
	}
	if in, err := file.Inspect(t.Context(), c.Dirs[0]); err != nil || in.Bytes != done.After {
		t.Errorf("%+v, %v", in, err)
	}
}

// Repair finds the identity in the block headers, and the groups in the keys.
func TestRepairOfSeveralGroups(t *testing.T) {
	c := groupsConfig(t)
	all := groupKeys(&c, 6)
	tr := open(t, c)
	putGroups(t, tr, &c, all)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	marker := filepath.Join(c.Dirs[0], "kvlane.json")
	lose := func() {
		t.Helper()
		if err := os.Remove(marker); err != nil {
			t.Fatal(err)
		}
	}
	lose()
	r, err := file.Repair(t.Context(), c.Dirs[0], nil)
	if err != nil || !r.MarkerMade || len(r.Unrepaired) != 0 || r.Blocks != 6 {
		t.Errorf("%+v, %v", r, err)
	}
	tr = open(t, c)
	for i, key := range all {
		if err := get(t, tr, c.Formats[i%2], key); err != nil {
			t.Error(err)
		}
	}
	for i := 1; i < len(all); i += 2 {
		if err := tr.Delete(t.Context(), all[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// If all blocks belong to one group, Repair cannot know the other groups.
	lose()
	r, err = file.Repair(t.Context(), c.Dirs[0], nil)
	if err != nil || r.MarkerMade || r.SetAside != 0 || r.Blocks != 3 || len(r.Unrepaired) == 0 || !strings.Contains(r.Findings[1].Detail, "one of several page groups") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestDirectoryOfAnotherSetOfGroups(t *testing.T) {
	c := groupsConfig(t)
	if err := open(t, c).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*file.Config)
		want   string
	}{
		"fewer":   {func(c *file.Config) { c.Formats, c.Identities = c.Formats[1:], c.Identities[1:] }, `page group "full" (identity`},
		"another": {func(c *file.Config) { c.Formats[0].Identity, c.Identities = block.Digest{31: 1}, nil }, "is not of them"},
		"more": {func(c *file.Config) {
			c.Formats, c.Identities = append(c.Formats, block.Format{Layout: c.Formats[0].Layout, Identity: block.Digest{31: 1}}), nil
		}, "0001 is not of them"},
		"another layout": {func(c *file.Config) { c.Formats[1].Layout = c.Formats[0].Layout }, "another layout"},
	} {
		other := groupsConfig(t)
		other.Dirs = c.Dirs
		tt.change(&other)
		tr, err := file.Open(t.Context(), other)
		if err == nil {
			err = errors.Join(errors.New("it opened"), tr.Close(t.Context()))
		}
		if !errors.Is(err, errdefs.ErrMismatch) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (&file.Config{Dirs: c.Dirs, Formats: c.Formats, Identities: c.Identities[:1]}).Validate(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("an identity too few: %v", err)
	}
}
