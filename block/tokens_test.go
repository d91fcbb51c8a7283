package block_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

func hashTokens(t *testing.T, parent []byte, tokens []int64, blockTokens int) [][]byte {
	t.Helper()
	flat, err := block.HashTokens(nil, parent, tokens, blockTokens)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for ; len(flat) > 0; flat = flat[block.HashBytes:] {
		out = append(out, flat[:block.HashBytes])
	}
	return out
}

// The hashes are part of the keys of stored blocks, so they must never change.
func TestHashesOfTokensStayWhatTheyAre(t *testing.T) {
	got := hashTokens(t, nil, []int64{1, 2, 3, 4, -1, 1 << 40, 7}, 2)
	want := []string{
		"8345b3385620d3c2dc1920e9d073dfe36ba2707471d0eed660a0f5c92cd98451",
		"1d315c0bf73489749600911984916013bed21bcca1dbed7275063401aa5a27bd",
		"f19b9838721ee12d5b495988a51c84f37a1f2084f5f00e6c4df1db6587ae4d0a",
	}
	if len(got) != len(want) {
		t.Fatalf("%d hashes", len(got))
	}
	for i := range want {
		if h := hex.EncodeToString(got[i]); h != want[i] {
			t.Errorf("hash %d is %s, not %s", i, h, want[i])
		}
	}
}

func TestHashesOfTokensAreChained(t *testing.T) {
	tokens := []int64{1, 2, 3, 4, 5, 6}
	all := hashTokens(t, nil, tokens, 2)
	if rest := hashTokens(t, all[0], tokens[2:], 2); !bytes.Equal(rest[0], all[1]) || !bytes.Equal(rest[1], all[2]) {
		t.Error("hashes from a parent on differ from those from the start")
	}
	if other := hashTokens(t, nil, []int64{9, 2, 3, 4, 5, 6}, 2); bytes.Equal(other[2], all[2]) {
		t.Error("a different first token did not change the last hash")
	}
	if other := hashTokens(t, nil, tokens, 3); bytes.Equal(other[1], all[2]) {
		t.Error("blocks of another length have the same hash")
	}
	if none := hashTokens(t, nil, tokens[:1], 2); none != nil {
		t.Error("a part of a block has a hash")
	}
	for name, err := range map[string]error{
		"no tokens a block": func() error { _, err := block.HashTokens(nil, nil, tokens, 0); return err }(),
		"a short parent":    func() error { _, err := block.HashTokens(nil, []byte("x"), tokens, 2); return err }(),
	} {
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkHashTokens hashes a prompt of 16,000 tokens.
func BenchmarkHashTokens(b *testing.B) {
	tokens := make([]int64, 16_000)
	out := make([]byte, 0, 1000*block.HashBytes)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := block.HashTokens(out, nil, tokens, 16); err != nil {
			b.Fatal(err)
		}
	}
}
