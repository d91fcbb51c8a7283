package block

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/kvlane/kvlane/errdefs"
)

// HashBytes is the length of the hashes of HashTokens.
const HashBytes = 32

// tokensContext keeps hashes of tokens apart from every other use of BLAKE3. It changes with the encoding.
const tokensContext = "github.com/kvlane/kvlane 2026-11 block tokens v1"

// hashers are reused, since deriving the context's key costs more than a block.
var hashers = sync.Pool{New: func() any { return blake3.NewDeriveKey(tokensContext) }}

// HashTokens appends to hashes one of HashBytes for each whole block of tokens, each chained to those before: hash i stands for all
// tokens up to the end of block i, and for those that parent stands for. parent is the hash of the block before the first token, or
// empty. For engines without hashes of their own; the same in every process and on every machine. What else tells prompts apart,
// such as images, is not in there. Safe for concurrent use.
func HashTokens(hashes, parent []byte, tokens []int64, blockTokens int) ([]byte, error) {
	if blockTokens < 1 || blockTokens > maxDimension {
		return hashes, fmt.Errorf("hash tokens: %d tokens a block are not 1 to %d: %w", blockTokens, maxDimension, errdefs.ErrInvalid)
	}
	if n := len(parent); n != 0 && n != HashBytes {
		return hashes, fmt.Errorf("hash tokens: the parent's hash has %d bytes, not %d: %w", n, HashBytes, errdefs.ErrInvalid)
	}
	h, ok := hashers.Get().(*blake3.Hasher)
	if !ok {
		h = blake3.NewDeriveKey(tokensContext)
	}
	defer hashers.Put(h)
	// The parent, which is zeros where there is none, and the block's tokens, in 8 bytes each, little-endian.
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
