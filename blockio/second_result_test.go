package blockio

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// A server that answers a request twice before it has read it loses its connection. It cannot write
// to the memory of a call that has returned.
func TestDefectSecondResultIsWrittenToMemory(t *testing.T) {
	client, server := net.Pipe()
	limits := DefaultLimits()
	const n = 4096
	returned := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = server.Close() }()
		r, w := wire.NewFrameReader(server, MaxHelloBytes, 0), wire.NewFrameWriter(server)
		if _, _, err := r.Next(); err != nil {
			t.Error(err)
			return
		}
		answer := HelloResult{ID: 1, Status: StatusOK, Boot: [16]byte{2}, Limits: limits}
		b, err := answer.Append(nil)
		if err != nil {
			t.Error(err)
			return
		}
		_ = w.Append(b)
		_ = w.Flush()
		if _, err := io.ReadFull(server, make([]byte, 1)); err != nil { // the rest of the request waits
			t.Error(err)
			return
		}
		data := bytes.Repeat([]byte{0xaa}, n)
		result := Result{Op: OpRetrieve, ID: 2, Status: StatusOK, Bytes: n, Entries: []EntryResult{{Status: StatusOK, Bytes: n, Sum: xxh3.Hash(data)}}}
		var p Packer
		body, err := p.Result(nil, &result, &limits)
		if err != nil {
			t.Error(err)
			return
		}
		var frame bytes.Buffer
		fw := wire.NewFrameWriter(&frame)
		_ = fw.Append(body, data)
		_ = fw.Flush()
		f := frame.Bytes()
		_, _ = server.Write(f)
		_, _ = server.Write(f[:len(f)-n])
		time.Sleep(20 * time.Millisecond) // the client finds the call of the second result
		go func() { _, _ = io.Copy(io.Discard, server) }()
		<-returned
		_, _ = server.Write(f[len(f)-n:])
	}()
	c, err := openConn(t.Context(), client, &Hello{ID: 1, RemainingMillis: 1000, Client: [16]byte{1}, Limits: limits}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := make([]byte, n)
	k := &call{
		request:  Request{Op: OpRetrieve, Entries: []Entry{{Length: n, Identity: 1, EndShard: 1, Key: [32]byte{1}}}},
		deadline: time.Now().Add(time.Minute), memory: [][]byte{m},
	}
	if err := c.start(k); err != nil {
		t.Fatal(err)
	}
	_, err = c.wait(t.Context(), k)
	clear(m)
	close(returned)
	<-c.ended
	<-done
	if err != nil && !errors.Is(err, errdefs.ErrInvalid) { // the first result may be accepted
		t.Error(err)
	}
	if m[0] != 0 {
		t.Errorf("the memory was written after the call had returned: %x", m[0])
	}
}
