package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/ctxio"
	"github.com/kvlane/kvlane/internal/kept"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// copyBytes is the maximum number of bytes of a file that are copied at a time.
const copyBytes = 64 << 20

// copyFlags select the part of a segment to read or write.
type copyFlags struct {
	transferFlags
	buffer         int
	offset, length int64
	notify         string
}

func (f *copyFlags) registerCopy(cmd *cobra.Command) {
	f.register(cmd, hostProtocols)
	f.registerTimeout(cmd.Flags())
	cmd.Flags().IntVar(&f.buffer, "buffer", 0, "index of the segment's buffer, from 0, as shown by ls")
	cmd.Flags().Var(sizeValue{&f.offset}, "offset", "first byte in the buffer")
}

func newTransferPutCommand() *cobra.Command {
	var f copyFlags
	cmd := &cobra.Command{
		Use:   "put SEGMENT FILE",
		Short: "Write a file into a segment",
		Long: `put writes a file into a buffer of a segment, from standard input where FILE is "-". With --notify it then sends a message to the
segment's process.`,
		Example: `  kvlane transfer put 127.0.0.1:15995 block.bin --offset 4KiB
  kvlane transfer put 127.0.0.1:15995 block.bin --notify "block 7 is there"`,
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error { return f.put(cmd, args[0], args[1]) },
	}
	f.registerCopy(cmd)
	cmd.Flags().StringVar(&f.notify, "notify", "", "message to the segment's process after all bytes")
	return cmd
}

func newTransferGetCommand() *cobra.Command {
	var f copyFlags
	cmd := &cobra.Command{
		Use:     "get SEGMENT FILE",
		Short:   "Read a part of a segment into a file",
		Long:    `get reads a buffer of a segment, or a part of it, into a file, to standard output where FILE is "-".`,
		Example: `  kvlane transfer get 127.0.0.1:15995 copy.bin --offset 4KiB --length 1KiB`,
		Args:    usageArgs(cobra.ExactArgs(2)),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.get(cmd, args[0], args[1]) },
	}
	f.registerCopy(cmd)
	cmd.Flags().Var(sizeValue{&f.length}, "length", "bytes to read; 0 is to the end of the buffer")
	return cmd
}

// window is a part of a segment's buffer, with local memory for its bytes.
type window struct {
	left   uint64
	memory []byte
	// carry copies the next n bytes between the memory and the segment. notify sends a message to
	// the segment's process.
	carry  func(ctx context.Context, write bool, n int) error
	notify func(ctx context.Context, message string) error
}

// open calls use with the part of the buffer that the flags select.
func (f *copyFlags) open(cmd *cobra.Command, segment string, use func(context.Context, *window) error) (err error) {
	b, err := hostmem.Alloc(copyBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hostmem.Free(b)) }()
	r, err := hostmem.Region(b)
	if err != nil {
		return err
	}
	if f.protocol != protocolMooncake {
		return f.openNative(cmd, segment, r, use)
	}
	return f.ask(cmd, func(ctx context.Context, d mooncake.Directory) (err error) {
		m := mooncake.NewRegions(nil)
		if err := m.Add("cpu:0", r); err != nil {
			return err
		}
		remote, err := mooncake.Open(ctx, segment, mooncake.Options{Directory: d, Memory: m})
		if err != nil {
			return asUsage(err)
		}
		defer func() { err = errors.Join(err, remote.Close()) }()
		buffers := remote.Segment().Buffers
		if f.buffer < 0 || f.buffer >= len(buffers) {
			return usagef("--buffer %d: segment %s has %d", f.buffer, segment, len(buffers))
		}
		to := buffers[f.buffer]
		if uint64(f.offset) >= to.Length {
			return usagef("--offset %d: the buffer has %d bytes", f.offset, to.Length)
		}
		at := to.Addr + uint64(f.offset)
		return use(ctx, &window{
			left: to.Length - uint64(f.offset), memory: b,
			carry: func(ctx context.Context, write bool, n int) error {
				t := mooncake.Task{Op: transfer.Read, Local: uint64(r.CPU()), Remote: at, Length: uint64(n)}
				if write {
					t.Op = transfer.Write
				}
				b, err := remote.Submit(ctx, []mooncake.Task{t})
				if err != nil {
					return err
				}
				at += uint64(n)
				// The batch ends when ctx ends. Wait for it, because it uses the memory until then.
				return b.Wait(context.WithoutCancel(ctx))
			},
			notify: func(ctx context.Context, message string) error {
				return mooncake.Notify(ctx, d, segment, mooncake.Notification{Name: "kvlane", Message: message})
			},
		})
	})
}

// move copies the next n bytes.
func (w *window) move(ctx context.Context, write bool, n int) error {
	w.left -= uint64(n)
	return w.carry(ctx, write, n)
}

func (f *copyFlags) put(cmd *cobra.Command, segment, name string) error {
	return f.open(cmd, segment, func(ctx context.Context, w *window) error {
		in := cmd.InOrStdin()
		if name != "-" {
			file, err := ctxio.Open(ctx, name)
			if err != nil {
				return fmt.Errorf("put: %w", err)
			}
			defer file.Close() //nolint:errcheck // only read
			in = file
		}
		total, err := w.writeAll(ctx, in, name)
		if err != nil {
			return err
		}
		if f.notify != "" {
			if err := w.notify(ctx, f.notify); err != nil {
				return err
			}
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%d bytes written\n", total)
		return nil
	})
}

// writeAll writes all of in to the segment and returns the number of bytes. name is used in errors.
func (w *window) writeAll(ctx context.Context, in io.Reader, name string) (total int, err error) {
	for {
		n, err := io.ReadFull(in, w.memory)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return total, fmt.Errorf("put: %w", err)
		}
		if uint64(n) > w.left {
			return total, fmt.Errorf("put: %s is longer than the rest of the buffer: %d bytes written", name, total)
		}
		if n > 0 {
			if err := w.move(ctx, true, n); err != nil {
				return total, err
			}
		}
		if total += n; n < len(w.memory) {
			return total, nil
		}
	}
}

func (f *copyFlags) get(cmd *cobra.Command, segment, name string) error {
	return f.open(cmd, segment, func(ctx context.Context, w *window) error {
		length := uint64(f.length)
		if length == 0 {
			length = w.left
		}
		if length > w.left {
			return usagef("--length %d: the buffer has %d bytes from there", length, w.left)
		}
		fill := func(out io.Writer) error { return w.readAll(ctx, out, length) }
		var err error
		if name == "-" {
			err = fill(cmd.OutOrStdout())
		} else {
			err = kept.Replace(name, fill)
		}
		if err != nil {
			return fmt.Errorf("get: %w", err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%d bytes read\n", length)
		return nil
	})
}

// readAll copies the next bytes of the segment to out.
func (w *window) readAll(ctx context.Context, out io.Writer, bytes uint64) error {
	for bytes > 0 {
		n := int(min(bytes, uint64(len(w.memory))))
		if err := w.move(ctx, false, n); err != nil {
			return err
		}
		if _, err := out.Write(w.memory[:n]); err != nil {
			return err
		}
		bytes -= uint64(n)
	}
	return nil
}
