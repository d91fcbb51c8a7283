package rpc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zlib"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
)

// Compression is the compression of a message. Attachments are not compressed.
type Compression int32

// The compressions.
const (
	NoCompression Compression = 0
	Snappy        Compression = 1
	Gzip          Compression = 2
	Zlib          Compression = 3
)

func (c Compression) String() string {
	if c >= NoCompression && c <= Zlib {
		return [...]string{"none", "snappy", "gzip", "zlib"}[c]
	}
	return "unknown"
}

// Content is the encoding of a message.
type Content int32

// The encodings.
const (
	Protobuf  Content = 0
	JSON      Content = 1
	ProtoJSON Content = 2
	Text      Content = 3
)

func (c Content) String() string {
	if c >= Protobuf && c <= Text {
		return [...]string{"pb", "json", "proto-json", "proto-text"}[c]
	}
	return "unknown"
}

// Checksum selects a checksum of a message.
type Checksum int32

// The checksums. CRC32C covers the compressed message. CRC32CAll covers the attachment too.
const (
	NoChecksum Checksum = iota
	CRC32C
	CRC32CAll
)

const checksumCRC32C = 1 // the value of checksum_type

// maxFrameData is the number of bytes of message and attachment in a frame, whose attachment_size
// has 31 bits. Receivers may have lower limits.
const maxFrameData = 1<<31 - 1

// payload is an encoded message.
type payload struct {
	bytes []byte
	block *chain.Block // memory of the bytes from a pool, or nil
}

func (p *payload) release() {
	if p.block != nil {
		p.block.Release()
	}
	*p = payload{}
}

// encode returns a message as it is sent. The caller releases it.
func encode(m proto.Message, content Content, compression Compression) (payload, error) {
	var b []byte
	var err error
	switch content {
	case Protobuf:
		if n := proto.Size(m); n <= chain.MaxBytes && compression == NoCompression {
			p := payload{block: chain.Get(n)}
			if p.bytes, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(p.block.Memory()[:0], m); err != nil {
				p.release()
			}
			return p, err
		}
		b, err = proto.Marshal(m)
	case JSON, ProtoJSON:
		b, err = protojson.Marshal(m)
	case Text:
		b, err = prototext.Marshal(m)
	default:
		err = fmt.Errorf("content type %d: %w", content, errdefs.ErrInvalid)
	}
	if err != nil {
		return payload{}, err
	}
	b, err = compress(b, compression)
	return payload{bytes: b}, err
}

func compress(b []byte, compression Compression) ([]byte, error) {
	var out bytes.Buffer
	var w io.WriteCloser
	switch compression {
	case NoCompression:
		return b, nil
	case Snappy:
		return snappy.Encode(nil, b), nil
	case Gzip:
		w = gzip.NewWriter(&out)
	case Zlib:
		w = zlib.NewWriter(&out)
	default:
		return nil, fmt.Errorf("compression type %d: %w", compression, errdefs.ErrInvalid)
	}
	if _, err := w.Write(b); err != nil {
		return nil, err
	}
	err := w.Close()
	return out.Bytes(), err
}

// decode reads a received message of at most limit bytes after decompression into m.
func decode(b []byte, m proto.Message, content Content, compression Compression, limit int64) error {
	b, err := decompress(b, compression, limit)
	if err != nil {
		return err
	}
	switch content {
	case Protobuf:
		return proto.Unmarshal(b, m)
	case JSON, ProtoJSON:
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)
	case Text:
		return prototext.Unmarshal(b, m)
	}
	return fmt.Errorf("content type %d: %w", content, errdefs.ErrInvalid)
}

// decompress returns ErrNoSpace for more than limit bytes. It allocates memory as output is
// produced, so that a short input cannot cause a large allocation.
func decompress(b []byte, compression Compression, limit int64) ([]byte, error) {
	var r io.Reader
	switch compression {
	case NoCompression:
		return b, nil
	case Snappy:
		n, err := snappy.DecodedLen(b)
		if err != nil {
			return nil, err
		}
		if int64(n) > limit {
			return nil, tooLong(limit)
		}
		if n > snappyRatio*len(b) {
			return nil, fmt.Errorf("%d bytes of snappy claim %d: %w", len(b), n, errdefs.ErrInvalid)
		}
		return snappy.Decode(nil, b)
	case Gzip:
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		r = z
	case Zlib:
		z, err := zlib.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		r = z
	default:
		return nil, fmt.Errorf("compression type %d: %w", compression, errdefs.ErrNotSupported)
	}
	out, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(out)) > limit {
		err = tooLong(limit)
	}
	return out, err
}

// snappyRatio bounds the output of snappy by its input: an element of 3 bytes yields 64 at most.
const snappyRatio = 22

func tooLong(limit int64) error {
	return fmt.Errorf("message of more than %d bytes after decompression: %w", limit, errdefs.ErrNoSpace)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// of returns the checksum of a message that is sent, or ErrInvalid for an unknown value.
func (c Checksum) of(message []byte, attachment *chain.Chain) ([]byte, error) {
	if c != CRC32C && c != CRC32CAll {
		return nil, fmt.Errorf("checksum %d: %w", c, errdefs.ErrInvalid)
	}
	return checksum(message, attachment, c == CRC32CAll)
}

// checksum returns the masked CRC32C of a message and, with all, of the attachment in host memory.
func checksum(message []byte, attachment *chain.Chain, all bool) ([]byte, error) {
	sum := crc32.Update(0, castagnoli, message)
	if all {
		list, err := attachment.Buffers(nil)
		if err != nil {
			return nil, err
		}
		for _, b := range list {
			sum = crc32.Update(sum, castagnoli, b)
		}
	}
	return binary.BigEndian.AppendUint32(nil, bits.RotateLeft32(sum, -15)+0xa282ead8), nil
}
