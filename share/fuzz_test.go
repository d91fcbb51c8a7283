package share

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// FuzzDescriptor checks that an accepted descriptor is valid and encodes to the same text. Any
// other input must return ErrInvalid.
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

// FuzzRequest checks that an accepted request encodes to the same bytes.
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

// FuzzReply checks that an accepted reply encodes to the same bytes.
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

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// FuzzServe checks that any request, with or without a file descriptor, is granted or refused, and
// leaves no resource open.
func FuzzServe(f *testing.F) {
	s, err := NewServer(Options{Dir: f.TempDir() + "/s"})
	must(f, err)
	must(f, s.Start(f.Context()))
	h, err := AllocHost(nil, 4096)
	must(f, err)
	e, err := s.Export(h, h.Region())
	must(f, err)
	f.Cleanup(func() { must(f, errors.Join(s.Close(context.Background()), h.Close())) })
	id := e.Descriptor().Identity
	for _, files := range []bool{false, true} {
		f.Add(encodeRequest(id, forMemory), files)
		f.Add(encodeRequest(id, forEnd), files)
		f.Add(encodeRequest(Identity{1}, forMemory), files)
		f.Add(make([]byte, requestBytes+1), files)
		f.Add([]byte{}, files)
	}
	f.Fuzz(func(t *testing.T, b []byte, files bool) {
		near, far, err := Ends()
		must(t, err)
		defer func() { must(t, near.Close()) }()
		before := s.Stats()
		var rights []byte
		if files {
			rights = unix.UnixRights(0)
		}
		if _, _, err = near.WriteMsgUnix(b, rights, nil); err != nil {
			_ = far.Close()
			t.Skip(err) // longer than a packet
		}
		// Otherwise the server waits for the end of this process.
		_, err = near.Write(encodeRequest(id, forEnd))
		must(t, err)
		s.serve(far)
		now := s.Stats()
		granted := now.Imports - before.Imports
		refused := now.Unknown + now.Malformed - before.Unknown - before.Malformed
		if granted+refused > 1 || now.Denied != before.Denied || e.Importers() != 0 {
			t.Errorf("%x, with a descriptor %v: %+v, and before %+v", b, files, now, before)
		}
		if asked, what, err := decodeRequest(b); (granted == 1) != (err == nil && asked == id && what == forMemory && !files) {
			t.Errorf("%x, with a descriptor %v: granted %d", b, files, granted)
		}
	})
}
