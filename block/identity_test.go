package block_test

import (
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

func someIdentity() block.Identity {
	return block.Identity{
		Model: "llama-3.1-8b", Revision: "r1", DType: "bfloat16", Layout: block.LayoutKV,
		LayerFirst: 0, LayerEnd: 32, HeadFirst: 0, HeadEnd: 8, HeadSize: 128, BlockTokens: 16,
		Adapter: "lora", Salt: "tenant",
	}
}

// Every field of an identity affects the key. Otherwise blocks could be used under a different
// dtype, layout, adapter, salt or multimodal input.
func TestDefect9KeysOfIdentitiesThatDifferInOneFieldDiffer(t *testing.T) {
	base := someIdentity()
	hash := []byte("engine block hash")
	seen := map[block.Key]string{base.Key(hash): "the base"}
	n := reflect.TypeOf(base).NumField()
	for i := range n {
		id := base
		name := reflect.TypeOf(base).Field(i).Name
		switch f := reflect.ValueOf(&id).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Int:
			f.SetInt(f.Int() + 1)
		default:
			t.Fatalf("field %s is of a kind that this test does not vary", name)
		}
		key := id.Key(hash)
		if other, ok := seen[key]; ok {
			t.Errorf("an identity that differs in %s has the key of %s", name, other)
		}
		seen[key] = name
		if diff := base.Diff(id); len(diff) != 1 {
			t.Errorf("Diff after a change of %s: %q, want one field", name, diff)
		}
	}
	if len(seen) != n+1 {
		t.Errorf("%d different keys of %d identities", len(seen), n+1)
	}
}

func TestDefect9FieldsShiftedIntoEachOtherDiffer(t *testing.T) {
	change := func(f func(*block.Identity)) block.Identity {
		id := someIdentity()
		f(&id)
		return id
	}
	tests := []struct {
		name string
		a, b block.Identity
	}{
		{"model and revision", change(func(i *block.Identity) { i.Model, i.Revision = "ab", "c" }), change(func(i *block.Identity) { i.Model, i.Revision = "a", "bc" })},
		{"adapter and salt", change(func(i *block.Identity) { i.Adapter, i.Salt = "x", "" }), change(func(i *block.Identity) { i.Adapter, i.Salt = "", "x" })},
		{"a separator in the text", change(func(i *block.Identity) { i.Adapter, i.Salt = "a\x00b", "c" }), change(func(i *block.Identity) { i.Adapter, i.Salt = "a", "b\x00c" })},
		{"layers and heads", change(func(i *block.Identity) { i.LayerEnd, i.HeadFirst = 1, 2 }), change(func(i *block.Identity) { i.LayerEnd, i.HeadFirst = 2, 1 })},
		{"a length in the text", change(func(i *block.Identity) { i.Adapter, i.Salt = "\x01\x00\x00\x00\x00\x00\x00\x00s", "" }), change(func(i *block.Identity) { i.Adapter, i.Salt = "", "s" })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.a.Digest() == tt.b.Digest() {
				t.Error("the digests are equal")
			}
		})
	}
}

// The engine's block hash includes multimodal input. Every bit of the hash affects the key, for any
// length.
func TestDefect9EveryBitOfTheEngineHashCounts(t *testing.T) {
	d := someIdentity().Digest()
	seen := make(map[block.Key]bool)
	count := 0
	for _, n := range []int{0, 1, 8, 16, 32, 64, 65, 1000} {
		hash := make([]byte, n)
		count++
		seen[d.Key(hash)] = true
		for bit := 0; bit < 8*n; bit += 1 + n/8 {
			hash[bit/8] ^= 1 << (bit % 8)
			count++
			seen[d.Key(hash)] = true
			hash[bit/8] ^= 1 << (bit % 8)
		}
	}
	if len(seen) != count {
		t.Errorf("%d different keys of %d hashes", len(seen), count)
	}
}

// Keys must not change between releases, because every stored block would be lost.
func TestKeyIsStable(t *testing.T) {
	const want = "0bb7b24f0ee5f9959f000f7b6b8f2ad18eb2ff533d507bfe58c07fbd1c8624bb"
	if got := someIdentity().Key([]byte("engine block hash")).String(); got != want {
		t.Errorf("key %s, want %s", got, want)
	}
}

func TestKeyAllocatesNothing(t *testing.T) {
	d, hash := someIdentity().Digest(), make([]byte, 32)
	if n := testing.AllocsPerRun(100, func() { _ = d.Key(hash) }); n > 0 {
		t.Errorf("%v allocations a key", n)
	}
}

func TestIdentityValidateNamesEveryProblem(t *testing.T) {
	if err := someIdentity().Validate(); err != nil {
		t.Errorf("a good identity: %v", err)
	}
	bad := block.Identity{
		Revision: strings.Repeat("r", 2000), DType: "int3", Layout: "vk",
		LayerFirst: 3, LayerEnd: 3, HeadFirst: -1, HeadEnd: 1, HeadSize: 0, BlockTokens: -16,
	}
	err := bad.Validate()
	if !errors.Is(err, errdefs.ErrInvalid) {
		t.Fatalf("%v is not ErrInvalid", err)
	}
	for _, want := range []string{"model", "revision", `"int3"`, `"vk"`, "layers [3, 3)", "heads [-1, 1)", "head size 0", "block tokens -16"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}

// Half of the 16 heads of one model are not all 8 heads of another. Blocks with all heads have the
// same key whether or not the number is given.
func TestModelsWithOtherHeadsHaveOtherKeys(t *testing.T) {
	g := block.Geometry{Model: "m", DType: "int8", Layers: 1, KVHeads: 16, HeadSize: 8, BlockTokens: 16, TPSize: 2}
	half := g.Identity("", "")
	g.KVHeads, g.TPSize = 8, 1
	all := g.Identity("", "")
	if half.Digest() == all.Digest() || len(half.Diff(all)) != 1 {
		t.Errorf("8 of 16 heads and 8 of 8: the same identity %+v, %q", half, half.Diff(all))
	}
	given := all
	given.Heads = 8
	if all.Digest() != given.Digest() || len(all.Diff(given)) != 0 {
		t.Errorf("%+v and %+v differ: %q", all, given, all.Diff(given))
	}
	grouped := half
	grouped.Group, grouped.Layers = "g", "0"
	if grouped.Digest() == half.Digest() {
		t.Error("a page group has the model's identity")
	}
	half.Heads = 4
	if err := half.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "model's 4") {
		t.Errorf("8 of 4 heads: %v", err)
	}
}

// Text that is not UTF-8 would change in the JSON of a marker.
func TestIdentityIsUTF8(t *testing.T) {
	for _, change := range []func(*block.Identity){
		func(id *block.Identity) { id.Model += "\xe9" }, func(id *block.Identity) { id.Revision += "\xe9" },
		func(id *block.Identity) { id.Adapter = "\xe9" }, func(id *block.Identity) { id.Salt = "\xff" },
		func(id *block.Identity) { id.Group, id.Layers = "\xe9", "0" },
	} {
		id := someIdentity()
		change(&id)
		if err := id.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "not UTF-8") {
			t.Errorf("%+v: %v", id, err)
		}
	}
}

func TestDiffNeverShowsTheSalt(t *testing.T) {
	a, b := someIdentity(), someIdentity()
	b.Salt, b.DType = "secret", "float16"
	want := []string{`dtype: expected "bfloat16", found "float16"`, "salt: another one"}
	if diff := cmp.Diff(want, a.Diff(b)); diff != "" {
		t.Error(diff)
	}
}

func TestParseKeyAndDigest(t *testing.T) {
	key := someIdentity().Key(nil)
	if got, err := block.ParseKey(key.String()); err != nil || got != key {
		t.Errorf("ParseKey(%s) = %s, %v", key, got, err)
	}
	d := someIdentity().Digest()
	if got, err := block.ParseDigest(d.String()); err != nil || got != d {
		t.Errorf("ParseDigest(%s) = %s, %v", d, got, err)
	}
	good := hex.EncodeToString(make([]byte, 32))
	for _, s := range []string{"", "00", good[1:], good + "0", "g" + good[1:], "A" + good[1:], strings.Repeat("x", 5000)} {
		if _, err := block.ParseKey(s); !errors.Is(err, errdefs.ErrInvalid) || len(err.Error()) > 300 {
			t.Errorf("ParseKey(%.70q): %v", s, err)
		}
		if _, err := block.ParseDigest(s); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("ParseDigest(%.70q): %v", s, err)
		}
	}
}
