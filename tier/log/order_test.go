package log

import (
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A checkpoint was written while a block was being deleted. It contained the block and covered the
// deletion, so the block came back.
func TestDefectCheckpointHasWhatItCoversTheDeletionOf(t *testing.T) {
	f, key := tiertest.NewFormat(t), tiertest.Key(1)
	disk := faultfs.NewDisk(nil)
	process := disk.Process()
	defer process.Kill()
	fs, deleting, released, writing := faultfs.New(process, nil, nil), make(chan struct{}), make(chan struct{}), make(chan struct{})
	c := Config{Dir: "/srv/kv", Formats: block.Formats{f}, FS: fs, SegmentBytes: 128 << 10, SyncEvery: time.Hour}
	tr, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	src := tiertest.Buffer(t, f.Layout.ImageBytes())
	tiertest.Seal(t, f, src.Bytes(), key, 0)
	if err := tr.Put(t.Context(), key, src); err != nil {
		t.Fatal(err)
	}
	fs.Forbid(func(op, path string) error {
		switch {
		case op == "open" && strings.HasSuffix(path, indexTemp):
			close(writing)
		case op == "write" && strings.HasSuffix(path, segmentName(1)):
			close(deleting)
			<-released
		}
		return nil
	})
	removed, checked := make(chan error, 1), make(chan error, 1)
	go func() { removed <- tr.Delete(t.Context(), key) }()
	<-deleting
	// The block stays in the index until the deletion is written. By then the checkpoint has read
	// the ends of the segments, or waits.
	s := tr.table.shard(hashOf(key))
	s.mu.Lock()
	close(released)
	for head := tr.appenders[0].head; head.deletes.Load() == 0; {
		time.Sleep(time.Millisecond)
	}
	go func() { checked <- tr.checkpoint() }()
	select {
	case <-writing:
	case <-time.After(50 * time.Millisecond):
	}
	time.Sleep(10 * time.Millisecond) // both wait for the lock of the index
	s.mu.Unlock()
	for _, done := range []chan error{removed, checked} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	process.Kill()
	_ = tr.Close(t.Context())
	c.FS = disk.Process()
	if tr, err = Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if n, err := tr.Retain(t.Context(), []block.Key{key}); n != 0 || err != nil {
		t.Errorf("a deleted block is found: %v", err)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
