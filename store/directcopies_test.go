package store_test

import (
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/store"
)

// countingFS counts the bytes that file reads and writes move through host memory.
type countingFS struct {
	dirfs.FS
	read, written atomic.Int64
}

func (f *countingFS) OpenDir(path string) (dirfs.Dir, error) {
	d, err := f.FS.OpenDir(path)
	return countingDir{d, f}, err
}

type countingDir struct {
	dirfs.Dir
	fs *countingFS
}

func (d countingDir) Open(name string, flag int) (dirfs.File, error) {
	f, err := d.Dir.Open(name, flag)
	if desc, ok := f.(dirfs.Descriptor); ok && err == nil {
		return countingFile{f, desc.Descriptor, d.fs}, nil
	}
	return f, err
}

type countingFile struct {
	dirfs.File
	descriptor func() int
	fs         *countingFS
}

func (f countingFile) Descriptor() int { return f.descriptor() }

func (f countingFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	f.fs.read.Add(int64(n))
	return n, err
}

func (f countingFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(b, off)
	f.fs.written.Add(int64(n))
	return n, err
}

// hostBytes counts bytes that passed through host memory.
type hostBytes struct{ read, written, toHost, toDevice int64 }

// hostBytes runs do and returns the bytes that passed through host memory meanwhile.
func (r *rig) hostBytes(f *countingFS, do func()) hostBytes {
	before, read, written := r.dev.Traffic(), f.read.Load(), f.written.Load()
	do()
	after := r.dev.Traffic()
	return hostBytes{f.read.Load() - read, f.written.Load() - written, after.ToHost - before.ToHost, after.ToDevice - before.ToDevice}
}

// The payload of direct loads and dumps never passes through host memory, except that of a block
// that failed.
func TestDirectBlocksAreNotCopiedToTheHost(t *testing.T) {
	t.Parallel()
	for _, queues := range []int{0, 2} {
		for _, groups := range []int{1, 2} {
			f := &countingFS{FS: dirfs.OS()}
			r, _, _ := newDirectRig(t, rigOptions{
				window: true, groups: groups, pages: 32, fileFS: f, direct: &directOptions{model: sim.StorageModel{Aligned: true}, queues: queues},
			}, 8)
			ns := []int{1, 2, 3, 4, 5, 6}
			heads, image := int64(0), r.format.Layout.ImageBytes()
			for _, n := range ns {
				r.fill(uint32(n), n)
				heads += r.groups[r.groupOf(n)].Layout.HeaderBytes()
			}
			refs := r.refs(1, ns...)
			load := func(o store.LoadOptions, refs []store.Ref) error {
				l, err := r.st.Load(r.ctx(), nil, r.pages, refs, o)
				r.must(err)
				return l.Wait(r.ctx())
			}
			want := func(name string, want hostBytes, do func()) {
				t.Helper()
				if got := r.hostBytes(f, do); got != want {
					t.Errorf("%s: %+v through host memory, want %+v", name, got, want)
				}
			}
			want("dump", hostBytes{toDevice: heads}, func() {
				d, err := r.st.Dump(r.ctx(), r.pages, refs, store.DumpOptions{})
				r.must(err)
				r.must(d.Durable(r.ctx()))
			})
			for _, layerwise := range []bool{false, true} {
				want("load", hostBytes{read: heads}, func() { r.must(load(store.LoadOptions{Layerwise: layerwise}, refs)) })
			}
			r.wantDirect(12, 0)
			// Check that the counters work: a failed direct read moves its block through host
			// memory.
			r.plan.Add(fault.Nth(sim.OpFileRead, int(r.plan.Seen(sim.OpFileRead))).Fail(nil))
			failed := r.hostBytes(f, func() { r.must(load(store.LoadOptions{}, refs[1:2])) })
			if data := r.groups[r.groupOf(2)].Layout.DataBytes(); failed.read < data || failed.toDevice != data || failed.toHost != 0 {
				t.Errorf("%+v through host memory, with a read of %d bytes that failed", failed, data)
			}
			r.flipFile(2, 1)
			damaged := r.hostBytes(f, func() { wantErr(t, load(store.LoadOptions{}, refs[1:2]), errdefs.ErrCorrupt) })
			if damaged.read < image || damaged.read > 3*image || damaged.toDevice != 0 {
				t.Errorf("%+v through host memory, with a damaged file of %d bytes", damaged, image)
			}
		}
	}
}
