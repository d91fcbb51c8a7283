package block

import (
	"encoding/hex"
	"fmt"

	"github.com/zeebo/blake3"

	"github.com/kvlane/kvlane/errdefs"
)

// KeyBytes is the length of a Key.
const KeyBytes = 32

// Key identifies a block in a store: BLAKE3 of the identity's digest and the engine's block hash.
// Blocks of different identities never share a key.
type Key [KeyBytes]byte

// String returns the key as 64 hexadecimal digits, as in file names.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Check returns ErrInvalid for the zero key, which means that no key was set.
func (k Key) Check() error {
	if k == (Key{}) {
		return fmt.Errorf("the key is zero, so it was not set: %w", errdefs.ErrInvalid)
	}
	return nil
}

// CheckKeys returns the error of the first invalid key, with its index.
func CheckKeys(keys []Key) error {
	for i := range keys {
		if err := keys[i].Check(); err != nil {
			return fmt.Errorf("key %d: %w", i, err)
		}
	}
	return nil
}

// ParseKey parses the 64 lower-case hexadecimal digits returned by String.
func ParseKey(s string) (Key, error) {
	k, ok := parseHex32(s)
	if !ok {
		return Key{}, fmt.Errorf("parse block key %q: must be 64 lower-case hexadecimal digits: %w", clip(s), errdefs.ErrInvalid)
	}
	return k, nil
}

// DigestBytes is the length of a Digest.
const DigestBytes = 32

// Digest is the BLAKE3 digest of an Identity's canonical encoding, with a separate BLAKE3 context.
type Digest [DigestBytes]byte

// String returns the digest as 64 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// ParseDigest parses the 64 lower-case hexadecimal digits returned by String.
func ParseDigest(s string) (Digest, error) {
	d, ok := parseHex32(s)
	if !ok {
		return Digest{}, fmt.Errorf("parse identity digest %q: must be 64 lower-case hexadecimal digits: %w", clip(s), errdefs.ErrInvalid)
	}
	return d, nil
}

// Key returns the key of the block with this engine hash. The engine hash must cover the parent's
// hash, the token ids and multimodal input. The identity covers everything else.
func (d Digest) Key(engineHash []byte) Key {
	// The digest has a fixed length, so the encoding is unambiguous. Plain BLAKE3 cannot collide
	// with the digest, which uses key-derivation mode.
	var buf [DigestBytes + 64]byte
	return blake3.Sum256(append(append(buf[:0], d[:]...), engineHash...))
}

func parseHex32(s string) (out [32]byte, ok bool) {
	if len(s) != 2*len(out) {
		return out, false
	}
	for i := range out {
		hi, lo := nibble(s[2*i]), nibble(s[2*i+1])
		if hi > 15 || lo > 15 {
			return out, false
		}
		out[i] = hi<<4 | lo
	}
	return out, true
}

// nibble refuses upper case, so that a block has only one file name.
func nibble(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

// clip shortens foreign text in error messages.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
