// Package gunzip reads files that may be compressed, whatever their names end in.
package gunzip

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/errdefs"
)

// Reader returns what r holds: decompressed where it begins as gzip does, and as it is otherwise. Content that begins so and is not
// gzip is ErrInvalid.
func Reader(r io.Reader) (*bufio.Reader, error) {
	buf := bufio.NewReaderSize(r, 64<<10)
	head, err := buf.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.Equal(head, []byte{0x1f, 0x8b}) {
		return buf, nil
	}
	z, err := gzip.NewReader(buf)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalid)
	}
	return bufio.NewReader(z), nil
}
