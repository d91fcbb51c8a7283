package ctxio

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/errdefs"
)

// Decompress returns the contents of r. It decompresses them if they begin with the gzip magic
// number. It returns ErrInvalid if decompression then fails.
func Decompress(r io.Reader) (*bufio.Reader, error) {
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
