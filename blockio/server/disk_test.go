package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

const diskBytes = 64 << 20

// disks are the kinds of disks below a root.
var disks = map[string]func(root string, fsys dirfs.FS) *blockhost.Disk{
	"file": func(root string, fsys dirfs.FS) *blockhost.Disk {
		return &blockhost.Disk{Root: root, TenantBytes: diskBytes, Open: func(ctx context.Context, dir string, f block.Format) (tier.Tier, error) {
			c := file.Config{Dirs: []string{dir}, SharedBound: true, Formats: block.Formats{f}, Fsync: file.FsyncFile, MaxBytes: diskBytes, FS: fsys}
			return c.OpenTier(ctx)
		}}
	},
	"log": func(root string, fsys dirfs.FS) *blockhost.Disk {
		return &blockhost.Disk{Root: root, TenantBytes: diskBytes, Open: func(ctx context.Context, dir string, f block.Format) (tier.Tier, error) {
			return log.Open(ctx, log.Config{Dir: dir, Formats: block.Formats{f}, Fsync: log.FsyncAlways, MaxBytes: diskBytes, FS: fsys})
		}}
	},
}

func onDisks(t *testing.T, f func(t *testing.T, open func(root string, fsys dirfs.FS) *blockhost.Disk)) {
	t.Helper()
	for name, open := range disks {
		t.Run(name, func(t *testing.T) { f(t, open) })
	}
}

// retrieve reads a block and verifies it.
func (r *rig) retrieve(t *testing.T, c *blockio.Client, f block.Format, n int) error {
	t.Helper()
	m, pieces := image(t, f, n, 10000)
	want := bytes.Clone(m.Bytes())
	clear(m.Bytes())
	errs := make([]error, len(pieces))
	c.Retrieve(t.Context(), pieces, errs)
	err := errors.Join(errs...)
	if err == nil && !bytes.Equal(m.Bytes(), want) {
		t.Errorf("block %d of %s has wrong bytes", n, f.Identity)
	}
	return err
}

// Three identities with different image lengths share memory for half of their blocks. With a disk
// all blocks are found, also after a restart of the server with the same directory.
func TestBlocksReturnFromDisk(t *testing.T) {
	onDisks(t, func(t *testing.T, open func(string, dirfs.FS) *blockhost.Disk) {
		root := t.TempDir()
		const blocks = 12
		for start := range 2 {
			r := newDiskRig(t, Options{}, blocks*7/10, open(root, nil)) // the images of the other identities are shorter and longer
			c := r.client(t, blockio.ClientOptions{Retries: 20})
			if start == 0 {
				for i := range blocks {
					for _, f := range r.formats {
						_, pieces := image(t, f, i, 10000)
						must(t, store(t, c, pieces))
					}
				}
				must(t, c.Flush(t.Context()))
			}
			for i := range blocks {
				for _, f := range r.formats {
					must(t, r.retrieve(t, c, f, i))
				}
			}
			for _, f := range r.formats {
				present := make([]blockio.Presence, blocks+1)
				must(t, c.Exist(t.Context(), entries(f, blocks+1), present))
				for i, p := range present {
					if want := i < blocks; p.Present != want || p.Durable != want {
						t.Errorf("start %d: block %d of %s: %+v", start, i, f.Identity, p)
					}
				}
			}
			if u := r.host.Usage(auth.DefaultTenant); u.DiskReads == 0 || u.DiskErrors != 0 || u.Evictions == 0 || start == 0 && u.DiskWrites != 3*blocks {
				t.Errorf("start %d: figures %+v", start, u)
			}
			r.close(t)
		}
		dirs, err := filepath.Glob(filepath.Join(root, auth.DefaultTenant, "*"))
		must(t, err)
		if len(dirs) != 3 {
			t.Errorf("directories %v, want one for each identity", dirs)
		}
	})
}

func TestLeasesAndDeletionsOnDisk(t *testing.T) {
	onDisks(t, func(t *testing.T, open func(string, dirfs.FS) *blockhost.Disk) {
		r := newDiskRig(t, Options{}, 4, open(t.TempDir(), nil))
		c, f, ctx := r.client(t, blockio.ClientOptions{Retries: 20}), r.formats[0], t.Context()
		for i := range 8 {
			_, pieces := image(t, f, i, 1<<20)
			must(t, store(t, c, pieces))
		}
		must(t, c.Flush(ctx))
		l, err := c.Lease(ctx, entries(f, 9), time.Hour)
		must(t, err)
		if l.Keys() != 8 { // more than fit into memory
			t.Errorf("%d keys are leased", l.Keys())
		}
		errs := make([]error, 9)
		c.Delete(ctx, entries(f, 9), errs)
		for i, err := range errs[:8] {
			wantErr(t, fmt.Sprintf("delete leased block %d", i), err, blockio.ErrLeased)
		}
		wantErr(t, "delete an absent block", errs[8], errdefs.ErrNotFound)
		must(t, l.Release(ctx))
		c.Delete(ctx, entries(f, 8), errs[:8])
		must(t, errors.Join(errs[:8]...))
		for i := range 8 {
			wantErr(t, "a deleted block", r.retrieve(t, c, f, i), errdefs.ErrNotFound)
		}
		r.close(t)
	})
}

// Operation N on the files fails. The client gets errors or misses, but never wrong bytes, and
// after the fault the server works.
func TestFaultAtTheNthFileOperation(t *testing.T) {
	onDisks(t, func(t *testing.T, open func(string, dirfs.FS) *blockhost.Disk) {
		for _, op := range []string{"write", "sync", "rename", "read"} {
			for n := range 1000 {
				plan := fault.New(1)
				r := newDiskRig(t, Options{}, 4, open(t.TempDir(), faultfs.New(dirfs.OS(), plan, nil)))
				c, f := r.client(t, blockio.ClientOptions{Retries: 20}), r.formats[0]
				_, err := c.Stat(t.Context()) // opens the directories
				must(t, err)
				plan.Add(fault.Nth(op, int(plan.Seen(op))+n).Fail(unix.EIO))
				var failed error
				for i := range 8 {
					_, pieces := image(t, f, i, 1<<20)
					failed = errors.Join(failed, store(t, c, pieces))
				}
				failed = errors.Join(failed, c.Flush(t.Context()))
				for i := range 8 {
					failed = errors.Join(failed, r.retrieve(t, c, f, i))
				}
				injected := plan.Injected()
				plan.Clear()
				for i := 10; i < 14; i++ {
					_, pieces := image(t, f, i, 1<<20)
					until(t, "the server does not work after the fault", func() bool { return store(t, c, pieces) == nil })
				}
				until(t, "nothing is durable after the fault", func() bool { return c.Flush(t.Context()) == nil })
				for i := 10; i < 14; i++ {
					must(t, r.retrieve(t, c, f, i))
				}
				if u := r.host.Usage(auth.DefaultTenant); injected > 0 && failed == nil && u.DiskErrors == 0 && op != "read" {
					t.Errorf("%s %d: the fault is in no figure: %+v", op, n, u)
				}
				r.close(t)
				if injected == 0 {
					break
				}
				if n > 200 {
					t.Fatal("the number of operations has no limit")
				}
			}
		}
	})
}

// A disk that is slower than its sender slows the sender down. Stores do not fail within their
// deadline, and blocks in memory are retrieved meanwhile.
func TestSlowDiskSlowsTheSender(t *testing.T) {
	const stall = time.Second // more than the delays of a client's retries
	plan := fault.New(1)
	r := newDiskRig(t, Options{}, 4, disks["file"](t.TempDir(), faultfs.New(dirfs.OS(), plan, nil)))
	c, f := r.client(t, blockio.ClientOptions{Timeout: testkit.Patience()}), r.formats[0]
	_, err := c.Stat(t.Context()) // opens the directories
	must(t, err)
	plan.Add(fault.After("write", int(plan.Seen("write"))).Stall())
	stored, first := make(chan error, 1), make(chan struct{})
	go func() {
		var errs []error
		for i := range 4 {
			_, pieces := image(t, f, i, 1<<20)
			errs = append(errs, store(t, c, pieces))
			if i == 0 {
				close(first)
			}
		}
		stored <- errors.Join(errs...)
	}()
	<-first
	time.Sleep(stall)
	must(t, r.retrieve(t, c, f, 0))
	select {
	case err := <-stored:
		t.Fatalf("more than half of the memory waits for the disk, and stores end with %v", err)
	default:
	}
	plan.Release()
	must(t, <-stored)
	r.close(t)
}

// A read that hangs delays neither other requests nor the end of its own request beyond the
// deadline.
func TestHangingDisk(t *testing.T) {
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
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	c.Retrieve(ctx, pieces, errs)
	if took := time.Since(start); errs[0] == nil || took > 5*time.Second {
		t.Errorf("a retrieve from a hanging disk: %v after %v", errs[0], took)
	}
	_, pieces = image(t, f, 7, 1<<20) // in memory
	c.Retrieve(t.Context(), pieces, errs)
	must(t, errors.Join(errs...))
	plan.Release()
	r.close(t)
}

// If the directory of a tenant cannot be created, the hello fails as a failure of the server.
func TestDirectoryThatCannotBeMade(t *testing.T) {
	root := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(root, nil, 0o600))
	r := newDiskRig(t, Options{}, 4, disks["file"](root, nil))
	_, err := r.client(t, blockio.ClientOptions{}).Stat(t.Context())
	wantErr(t, "a directory below a file", err, blockio.ErrFailed)
	r.close(t)
}
