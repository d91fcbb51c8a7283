package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
	engine "github.com/kvlane/kvlane/transfer"
)

// askNative opens a segment of kvlane's own protocol and calls use with it, with a function that
// submits tasks, and with a context with the timeout.
func (f *transferFlags) askNative(cmd *cobra.Command, segment string, use func(context.Context, *engine.Remote, submitter) error) (err error) {
	path, _, err := f.native()
	if err != nil {
		return err
	}
	store, done, err := f.store()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := f.bound(cmd)
	defer cancel()
	importer, err := share.NewImporter(nil, share.ImportOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, importer.Close()) }()
	e, err := engine.Open(engine.Options{Store: store, Importer: importer})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := closing(ctx, closeTimeout, interruptGrace)
		defer cancel()
		err = errors.Join(err, e.Close(ctx))
	}()
	r, err := e.OpenSegment(ctx, segment)
	if err != nil {
		return asUsage(err)
	}
	return use(ctx, r, func(ctx context.Context, t engine.Task, notify []byte) error {
		o := engine.SubmitOptions{Path: path, Notify: notify}
		if end, ok := ctx.Deadline(); ok {
			o.Timeout = max(time.Until(end), time.Millisecond)
		}
		b, err := e.Submit(ctx, []engine.Task{t}, o)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, b.Cancel)()
		<-b.Done() // the batch has a timeout; wait for it, because it uses the memory
		return b.Err()
	})
}

// submitter executes one task and waits until it is done. If notify is not nil, it also notifies
// the segment's process.
type submitter func(ctx context.Context, t engine.Task, notify []byte) error

// openNative is like open for kvlane's own protocol.
func (f *copyFlags) openNative(cmd *cobra.Command, segment string, local *mem.Region, use func(context.Context, *window) error) error {
	return f.askNative(cmd, segment, func(ctx context.Context, r *engine.Remote, submit submitter) error {
		buffers := r.Describe().Buffers
		if f.buffer < 0 || f.buffer >= len(buffers) {
			return usagef("--buffer %d: segment %s has %d", f.buffer, segment, len(buffers))
		}
		to := buffers[f.buffer]
		if f.offset >= to.Length {
			return usagef("--offset %d: the buffer has %d bytes", f.offset, to.Length)
		}
		at := to.Offset + f.offset
		return use(ctx, &window{
			left: uint64(to.Length - f.offset), memory: local.Bytes(),
			carry: func(ctx context.Context, write bool, n int) error {
				t := engine.Task{Op: engine.Read, Segment: r, Local: mem.Extent{Region: local, Len: int64(n)}, Offset: at}
				if write {
					t.Op = engine.Write
				}
				at += int64(n)
				return submit(ctx, t, nil)
			},
			notify: func(ctx context.Context, message string) error {
				return submit(ctx, engine.Task{Op: engine.Write, Segment: r, Local: mem.Extent{Region: local}, Offset: to.Offset}, []byte(message))
			},
		})
	})
}

// probeNative returns the round-trip time of a request to the engine of a segment.
func (f *transferFlags) probeNative(cmd *cobra.Command, segment string) (took time.Duration, err error) {
	err = f.askNative(cmd, segment, func(ctx context.Context, r *engine.Remote, _ submitter) (err error) {
		took, err = r.Probe(ctx)
		return err
	})
	return took, err
}

// listNative prints the buffers of a segment of kvlane's own protocol.
func (f *transferFlags) listNative(cmd *cobra.Command, segment string, json bool) error {
	return f.askNative(cmd, segment, func(_ context.Context, r *engine.Remote, _ submitter) error {
		d := r.Describe()
		if json {
			return writeJSON(cmd, d)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "segment   %s\nengine    %s\n", present.Name(d.Name), d.Engine)
		if len(d.NICs) > 0 {
			fmt.Fprintf(cmd.OutOrStdout(), "nics      %s\n", present.Name(strings.Join(d.NICs, ", ")))
		}
		t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "BUFFER\tNAME\tOFFSET\tBYTES\tMEMORY\tSHARED")
		for i, b := range d.Buffers {
			shared := "no"
			if b.Share != nil {
				shared = b.Share.Type.String()
			}
			fmt.Fprintf(t, "%d\t%s\t%d\t%d\t%s\t%s\n", i, present.Name(b.Name), b.Offset, b.Length, present.Name(b.Kind), shared)
		}
		return t.Flush()
	})
}
