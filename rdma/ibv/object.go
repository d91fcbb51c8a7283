package ibv

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/rdma"
)

// object is the life of a verbs object: whether it is open, and how many objects hang on it.
type object struct {
	what string // for errors: "completion queue of rxe0"

	// life is held, shared, during calls that use the native object, and alone by the one that frees it.
	life     sync.RWMutex
	closed   bool
	children atomic.Int64 // changed with life held at least shared
}

// open makes o an open object.
func (o *object) open(format string, args ...any) {
	o.what = fmt.Sprintf(format, args...)
	leak.Add(leak.Handles, 1)
}

// enter begins a call; leave ends it.
func (o *object) beginCall() error {
	o.life.RLock()
	if o.closed {
		o.life.RUnlock()
		return fmt.Errorf("use %s: %w", o.what, errdefs.ErrClosed)
	}
	return nil
}

func (o *object) endCall() { o.life.RUnlock() }

// adopt notes that something hangs on o, until release.
func (o *object) adopt() error {
	if err := o.beginCall(); err != nil {
		return err
	}
	defer o.endCall()
	o.children.Add(1)
	return nil
}

func (o *object) release() { o.children.Add(-1) }

// shut closes o: free gives the native object back, and where it fails o stays open; after that o is closed, whatever tidy
// finds. It returns nil for an object that is closed.
func (o *object) close(free, tidy func() error) error {
	o.life.Lock()
	defer o.life.Unlock()
	if o.closed {
		return nil
	}
	if n := o.children.Load(); n > 0 {
		return fmt.Errorf("close %s: %d objects hang on it: %w", o.what, n, errdefs.ErrBusy)
	}
	if err := free(); err != nil {
		return fmt.Errorf("close %s: %w", o.what, err)
	}
	o.closed = true
	leak.Add(leak.Handles, -1)
	if err := tidy(); err != nil {
		return fmt.Errorf("close %s: %w", o.what, err)
	}
	return nil
}

// adoptAll adopts every parent or none. It skips none of them: a queue that is given twice is adopted twice.
func adoptAll(parents []*object) error {
	for i, p := range parents {
		if err := p.adopt(); err != nil {
			releaseAll(parents[:i])
			return err
		}
	}
	return nil
}

func releaseAll(parents []*object) {
	for _, p := range parents {
		p.release()
	}
}

// check returns the error of a verb that answered errno, or nil.
func check(errno syscall.Errno, call, format string, args ...any) error {
	if errno == 0 {
		return nil
	}
	return rdma.NewError(call, fmt.Sprintf(format, args...), errno, "")
}
