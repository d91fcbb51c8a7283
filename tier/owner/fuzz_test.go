package owner

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// FuzzRequest checks that a request is decoded exactly if its encoding is the input.
func FuzzRequest(f *testing.F) {
	q := request{opPin, []block.Key{{1}, {2}}}
	f.Add(q.encode())
	f.Add(q.encode()[:20])
	f.Add([]byte("kvo\x01\x04\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		q, err := readRequest(r)
		switch used := b[:len(b)-r.Len()]; {
		case err == nil && !bytes.Equal(q.encode(), used):
			t.Errorf("%x is decoded as %x", used, q.encode())
		case err != nil && !errors.Is(err, errdefs.ErrInvalid) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			t.Error(err)
		}
	})
}

// FuzzReply checks that decoding a reply reads no more than its length, and that removed blocks were
// among the keys.
func FuzzReply(f *testing.F) {
	keys := []block.Key{{1}, {2}, {3}}
	p := reply{Removed: []byte{2, 0}, Bytes: 7, Left: &failure{"in use", "busy"}}
	b, err := p.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("\x02\x00\x00\x00{}"))
	f.Add([]byte("\xff\xff\xff\xff{}"))
	f.Add(append([]byte{21, 0, 0, 0}, `{"removed":"BwAA"}   `...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		p, removed, err := readReply(r, keys)
		if err != nil {
			if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Error(err)
			}
			return
		}
		if len(p.Removed) != 2*len(removed) || p.Bytes < 0 {
			t.Errorf("%+v, removed %v", p, removed)
		}
		if p.Error.err() != nil && p.Error.err().Error() != p.Error.Text {
			t.Errorf("the error is %v", p.Error.err())
		}
	})
}
