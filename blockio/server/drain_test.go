package server

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
)

// A server that drains ends the request in progress, and refuses requests and connections.
func TestDrain(t *testing.T) {
	plan := fault.New(1)
	r := newDiskRig(t, Options{}, 4, disks["file"](t.TempDir(), faultfs.New(dirfs.OS(), plan, nil)))
	c, f := r.client(t, blockio.ClientOptions{Retries: 20}), r.formats[0]
	for i := range 8 {
		_, pieces := image(t, f, i, 1<<20)
		must(t, store(t, c, pieces))
	}
	must(t, c.Flush(t.Context()))
	plan.Add(fault.After("read", int(plan.Seen("read"))).Stall())
	_, pieces := image(t, f, 0, 1<<20)
	errs := make([]error, len(pieces))
	retrieved := make(chan struct{})
	go func() {
		defer close(retrieved)
		c.Retrieve(t.Context(), pieces, errs)
	}()
	until(t, "the read does not begin", func() bool { return plan.Injected() > 0 })
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	wantErr(t, "drain with a request in progress", r.Drain(short), errdefs.ErrBusy)
	_, another := image(t, f, 7, 1<<20) // in memory
	wantErr(t, "a request while the server drains", store(t, c, another), errdefs.ErrClosed)
	if _, err := net.Dial("tcp", r.addr); err == nil {
		t.Error("a server that drains accepts connections")
	}
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	plan.Release()
	must(t, <-drained)
	<-retrieved
	must(t, errors.Join(errs...))
	r.close(t)
}
