package share

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// FuzzDescriptor: a descriptor that is taken is valid, and comes back as it was written; one that is not is ErrInvalid.
func FuzzDescriptor(f *testing.F) {
	good := Descriptor{
		Identity: Identity{1, 2, 3}, Type: device.HandlePosixFD, PID: 4, Socket: "/run/user/1000/kvlane/4-ab.sock", Device: "GPU-1", Bytes: 4 << 20, Offset: 100, Length: 200,
	}
	b, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}"))
	f.Add([]byte(`{"identity":"00","bytes":-1}`))
	f.Add([]byte(`{"identity":"01020300000000000000000000000000","handle":"memfd","pid":1,"socket":"/x","bytes":9223372036854775807,"offset":9223372036854775807,"length":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseDescriptor(b)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalid) || d != (Descriptor{}) {
				t.Fatalf("%+v, %v", d, err)
			}
			return
		}
		if err := d.Validate(); err != nil {
			t.Fatal(err)
		}
		if d.Offset < 0 || d.Length <= 0 || d.Offset+d.Length > d.Bytes || d.Offset+d.Length < 0 {
			t.Fatalf("%+v", d)
		}
		again, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseDescriptor(again); err != nil || back != d {
			t.Fatalf("%+v became %+v: %v", d, back, err)
		}
	})
}

// FuzzRequest: a request that is understood is the one of its identity, to the byte.
func FuzzRequest(f *testing.F) {
	f.Add(encodeRequest(Identity{1}, forMemory))
	f.Add(encodeRequest(Identity{1}, forEnd))
	f.Add([]byte{})
	f.Add(make([]byte, requestBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, what, err := decodeRequest(b)
		switch {
		case err == nil && !bytes.Equal(encodeRequest(id, what), b):
			t.Fatalf("%x is taken for %s", b, id)
		case err != nil && !errors.Is(err, errdefs.ErrInvalid) && !errors.Is(err, errdefs.ErrMismatch):
			t.Fatal(err)
		}
	})
}

// FuzzReply is the same for replies.
func FuzzReply(f *testing.F) {
	f.Add((&reply{status: statusOK, handle: device.Handle{Type: device.HandleFabric, Bytes: 5, Off: 1}, length: 4}).encode())
	f.Add((&reply{status: statusWithdrawn}).encode())
	f.Add(make([]byte, replyBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeReply(b)
		switch {
		case err == nil && !bytes.Equal(r.encode(), b):
			t.Fatalf("%x is taken for %+v", b, r)
		case err == nil && (r.status.err() == nil) != (r.status == statusOK):
			t.Fatalf("status %d: %v", r.status, r.status.err())
		case err != nil && !errors.Is(err, errdefs.ErrInvalid) && !errors.Is(err, errdefs.ErrMismatch):
			t.Fatal(err)
		}
	})
}
