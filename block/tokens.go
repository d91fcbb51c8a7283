package block

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/kvlane/kvlane/errdefs"
)

// HashBytes is the length of a hash of HashTokens.
const HashBytes = 32

// tokensContext separates hashes of tokens from other uses of BLAKE3. It changes with the encoding.
const tokensContext = "github.com/kvlane/kvlane 2026-11 block tokens v1"

// hashers are reused, because deriving the key of the context costs more than hashing a block.
var hashers = sync.Pool{New: func() any { return blake3.NewDeriveKey(tokensContext) }}

// HashTokens appends one hash of HashBytes for each whole block of tokens. Each hash covers all
// tokens up to the end of its block, and those covered by parent, the hash of the block before the
// first token, or empty. HashTokens is for engines without block hashes. Its result is the same in
// every process and on every machine. It does not cover other input, such as images. It is safe for
// concurrent use.
func HashTokens(hashes, parent []byte, tokens []int64, blockTokens int) ([]byte, error) {
	if blockTokens < 1 || blockTokens > maxDimension {
		return hashes, fmt.Errorf("hash tokens: %d tokens per block: must be 1 to %d: %w", blockTokens, maxDimension, errdefs.ErrInvalid)
	}
	if n := len(parent); n != 0 && n != HashBytes {
		return hashes, fmt.Errorf("hash tokens: the parent's hash has %d bytes, not %d: %w", n, HashBytes, errdefs.ErrInvalid)
	}
	h, ok := hashers.Get().(*blake3.Hasher)
	if !ok {
		h = blake3.NewDeriveKey(tokensContext)
	}
	defer hashers.Put(h)
	// buf holds the parent's hash, or zeros, and then the tokens of the block in 8 bytes each,
	// little-endian.
	buf := make([]byte, HashBytes, HashBytes+8*min(blockTokens, len(tokens)))
	copy(buf, parent)
	for ; len(tokens) >= blockTokens; tokens = tokens[blockTokens:] {
		for _, t := range tokens[:blockTokens] {
			buf = binary.LittleEndian.AppendUint64(buf, uint64(t))
		}
		h.Reset()
		if _, err := h.Write(buf); err != nil {
			return hashes, fmt.Errorf("hash tokens: %w", err)
		}
		hashes = h.Sum(hashes)
		buf = append(buf[:0], hashes[len(hashes)-HashBytes:]...)
	}
	return hashes, nil
}

// TokenKeys returns the keys of the group's whole blocks of a prompt whose hashes are those of
// HashTokens. group must be in range.
func (fs Formats) TokenKeys(group int, tokens []int64, blockTokens int) ([]Key, error) {
	hashes, err := HashTokens(nil, nil, tokens, blockTokens)
	if err != nil {
		return nil, err
	}
	keys := make([]Key, 0, len(hashes)/HashBytes)
	for ; len(hashes) > 0; hashes = hashes[HashBytes:] {
		keys = append(keys, fs.Key(group, hashes[:HashBytes]))
	}
	return keys, nil
}
