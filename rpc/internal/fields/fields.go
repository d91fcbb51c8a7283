// Package fields reads protobuf messages without generated code.
package fields

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvlane/kvlane/errdefs"
)

// Each calls set for each varint (b is nil) and each byte string (b is not nil) of a message. It
// skips fields of other types. It returns ErrInvalid for a malformed message, and the errors of set.
func Each(m []byte, set func(n protowire.Number, v uint64, b []byte) error) error {
	for len(m) > 0 {
		n, kind, size := protowire.ConsumeTag(m)
		if size < 0 {
			return fmt.Errorf("decode message: %w: %w", errdefs.ErrInvalid, protowire.ParseError(size))
		}
		m = m[size:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, size = protowire.ConsumeVarint(m)
		case protowire.BytesType:
			if b, size = protowire.ConsumeBytes(m); b == nil {
				b = []byte{}
			}
		default:
			size = protowire.ConsumeFieldValue(n, kind, m)
		}
		if size < 0 {
			return fmt.Errorf("decode message: %w: %w", errdefs.ErrInvalid, protowire.ParseError(size))
		}
		m = m[size:]
		if kind == protowire.VarintType || kind == protowire.BytesType {
			if err := set(n, v, b); err != nil {
				return err
			}
		}
	}
	return nil
}
