package block

import "encoding/hex"

// KeyBytes is the length of a Key.
const KeyBytes = 32

// Key names a block in a store: BLAKE3 of the identity's digest and the engine's block hash. Blocks of two identities
// never share a key.
type Key [KeyBytes]byte

// String returns the key as 64 hexadecimal digits, as file names have it.
func (k Key) String() string { return hex.EncodeToString(k[:]) }
