package share

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

const (
	// probeBytes is the length of the tested memory. A device may allocate more.
	probeBytes = 64 << 10
	// probeTimeout is the maximum duration of one test, including the start of the other process
	// and its device.
	probeTimeout = time.Minute
)

// Finding is the result of testing a type of handle. Err is nil if the type works, ErrNotSupported
// if it does not, and another error if the test was inconclusive.
type Finding struct {
	Type device.HandleType
	Err  error
}

// ProbeOptions are the options of a probe.
type ProbeOptions struct {
	// Peer returns the command that starts a second process, which calls AnswerProbe. Nil: the
	// exporting process also imports the memory. Then the test of cuda-ipc is inconclusive.
	Peer func(ctx context.Context) *exec.Cmd
	// Dir is the directory of the probe's socket. Default: a new temporary directory.
	Dir string
}

// Probe tests each type of handle that dev supports, in order of preference. It allocates, exports
// and imports memory and copies a few KiB in each direction.
func Probe(ctx context.Context, dev device.Sharer, o ProbeOptions) []Finding {
	var all []Finding
	for _, t := range dev.HandleTypes() {
		all = append(all, Finding{Type: t, Err: probe(ctx, dev, t, &o)})
	}
	return all
}

// ProbeHost tests sharing of host memory. The memory is pinned for dev, or pageable if dev is nil.
func ProbeHost(ctx context.Context, dev device.Device, o ProbeOptions) Finding {
	return Finding{Type: device.HandleMemFD, Err: probeHost(ctx, dev, &o)}
}

// Choose returns the first type that works. If none works, it returns ErrNotSupported with the
// reason for every type.
func Choose(all []Finding) (device.HandleType, error) {
	refusals := []error{fmt.Errorf("no type of handle works: %w", errdefs.ErrNotSupported)}
	for _, f := range all {
		if f.Err == nil {
			return f.Type, nil
		}
		refusals = append(refusals, fmt.Errorf("%s: %w", f.Type, f.Err))
	}
	return 0, errors.Join(refusals...)
}

// Allocator allocates shareable device memory for the best type of handle that works.
type Allocator struct {
	dev device.Sharer
	by  device.HandleType
}

// NewAllocator returns an allocator for dev. all is the result of Probe. It returns ErrNotSupported
// with the reason for every type if none works.
func NewAllocator(dev device.Sharer, all []Finding) (*Allocator, error) {
	by, err := Choose(all)
	if err != nil {
		return nil, fmt.Errorf("make allocator of shareable memory: %w", err)
	}
	return &Allocator{dev: dev, by: by}, nil
}

// Type returns the type of handle that the memory supports.
func (a *Allocator) Type() device.HandleType { return a.by }

// Alloc allocates device memory. The caller frees it with the device.
func (a *Allocator) Alloc(bytes int64) (*mem.Region, error) {
	return a.dev.Alloc(bytes, device.AllocOptions{Shareable: true, Handle: a.by})
}

func probe(ctx context.Context, dev device.Sharer, t device.HandleType, o *ProbeOptions) (err error) {
	if t == device.HandleCUDAIPC && o.Peer == nil {
		return errors.New("no second process is available for the test, and a process cannot open its own handle")
	}
	r, err := dev.Alloc(probeBytes, device.AllocOptions{Shareable: true, Handle: t})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Free(r)) }()
	return roundTrip(ctx, only{dev, t}, dev, r, o)
}

// only is a Source that is restricted to one type of handle.
type only struct {
	Source
	by device.HandleType
}

// HandleTypes implements Source.
func (s only) HandleTypes() []device.HandleType { return []device.HandleType{s.by} }

func probeHost(ctx context.Context, dev device.Device, o *ProbeOptions) (err error) {
	h, err := AllocHost(dev, probeBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	return roundTrip(ctx, h, dev, h.Region(), o)
}

// roundTrip exports and imports r, lets the importer read and overwrite it, and checks the result.
func roundTrip(ctx context.Context, from Source, dev device.Device, r *mem.Region, o *ProbeOptions) (err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "kvlane-"); err != nil {
			return fmt.Errorf("make directory of sockets: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	s, err := NewServer(Options{Dir: dir})
	if err != nil {
		return err
	}
	if err := s.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	e, err := s.Export(from, r)
	if err != nil {
		return err
	}
	d := e.Descriptor()
	if err := write(ctx, dev, r, pattern(d.Identity, r.Len(), 0)); err != nil {
		return err
	}
	if o.Peer != nil {
		err = askPeer(ctx, o.Peer(ctx), &d)
	} else {
		err = answer(ctx, dev, d)
	}
	if err != nil {
		return err
	}
	return expect(ctx, dev, r, pattern(d.Identity, r.Len(), 1))
}

// verdict is the result that the second process prints.
type verdict struct {
	Err          string `json:"error,omitempty"`
	NotSupported bool   `json:"not_supported,omitempty"`
}

func askPeer(ctx context.Context, cmd *exec.Cmd, d *Descriptor) error {
	in, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("write descriptor: %w", err)
	}
	var out, log bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &log
	ran := cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("wait for the second process: %w", context.Cause(ctx))
	}
	var v verdict
	if err := json.NewDecoder(&out).Decode(&v); err != nil {
		return fmt.Errorf("the second process sent no result: %w", errors.Join(ran, errors.New(strings.TrimSpace(log.String()))))
	}
	switch {
	case v.NotSupported:
		return fmt.Errorf("the second process: %s: %w", v.Err, errdefs.ErrNotSupported)
	case v.Err != "":
		return fmt.Errorf("the second process: %s", v.Err)
	}
	return ran
}

// AnswerProbe is the part of Probe in the second process. It reads a descriptor from r. For device
// memory it calls open with the device's UUID. It imports, checks and overwrites the memory, and
// writes the result to w as JSON. It returns only errors of reading r and writing w.
func AnswerProbe(ctx context.Context, r io.Reader, w io.Writer, open func(uuid string) (device.Device, error)) error {
	b, err := io.ReadAll(io.LimitReader(r, maxDescriptor+1))
	if err != nil {
		return fmt.Errorf("read descriptor: %w", err)
	}
	d, err := ParseDescriptor(b)
	if err != nil {
		return err
	}
	var v verdict
	if err := answerOn(ctx, d, open); err != nil {
		v = verdict{Err: err.Error(), NotSupported: errors.Is(err, errdefs.ErrNotSupported)}
	}
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return fmt.Errorf("print verdict: %w", err)
	}
	return nil
}

func answerOn(ctx context.Context, d Descriptor, open func(uuid string) (device.Device, error)) (err error) {
	if d.Device == "" {
		return answer(ctx, nil, d)
	}
	dev, err := open(d.Device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	return answer(ctx, dev, d)
}

// answer imports the memory of d, checks its contents and writes the second pattern.
func answer(ctx context.Context, dev device.Device, d Descriptor) (err error) {
	in, err := NewImporter(dev, ImportOptions{})
	if err != nil {
		return err
	}
	i, err := in.Import(ctx, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.Close(), in.Close()) }()
	if err := expect(ctx, dev, i.Region(), pattern(d.Identity, d.Length, 0)); err != nil {
		return err
	}
	return write(ctx, dev, i.Region(), pattern(d.Identity, d.Length, 1))
}

// pattern returns n bytes that depend on the export and on the number which.
func pattern(id Identity, n int64, which byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = id[i%len(id)] ^ byte(i>>8) ^ which*0xa5
	}
	return b
}

// write copies b to r. expect compares r with b. Both use the CPU if r has a CPU address.
func write(ctx context.Context, dev device.Device, r *mem.Region, b []byte) error {
	if r.Bytes() != nil {
		copy(r.Bytes(), b)
		return nil
	}
	return through(ctx, dev, int64(len(b)), func(q device.Queue, p *mem.Region) error {
		copy(p.Bytes(), b)
		return moved(ctx, q, mem.All(r), mem.All(p))
	})
}

func expect(ctx context.Context, dev device.Device, r *mem.Region, want []byte) error {
	same := func(got []byte) error {
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%d shared bytes differ from the written bytes", len(want))
		}
		return nil
	}
	if r.Bytes() != nil {
		return same(r.Bytes())
	}
	return through(ctx, dev, int64(len(want)), func(q device.Queue, p *mem.Region) error {
		if err := moved(ctx, q, mem.All(p), mem.All(r)); err != nil {
			return err
		}
		return same(p.Bytes())
	})
}

// through calls f with a queue and pinned memory. If the queue cannot be synchronized, the memory
// stays allocated until the device is closed.
func through(ctx context.Context, dev device.Device, n int64, f func(q device.Queue, p *mem.Region) error) error {
	q, err := dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return fmt.Errorf("open queue: %w", err)
	}
	p, err := dev.AllocHost(n)
	if err == nil {
		err = f(q, p)
	}
	closeErr := q.Close(ctx)
	if closeErr == nil && p != nil {
		closeErr = dev.Free(p)
	}
	return errors.Join(err, closeErr)
}

func moved(ctx context.Context, q device.Queue, dst, src mem.Extent) error {
	if err := q.Copy(dst, src); err != nil {
		return err
	}
	e, err := q.Record()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Wait(ctx)
}
