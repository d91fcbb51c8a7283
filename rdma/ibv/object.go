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

// object is the common state of verbs objects: whether it is open and its number of children.
type object struct {
	what string // for errors: "completion queue of rxe0"

	// life is held shared during calls that use the native object, and exclusively while the object
	// is freed.
	life     sync.RWMutex
	closed   bool
	children atomic.Int64 // changed with life held shared or exclusively
}

// open marks o as open.
func (o *object) open(format string, args ...any) {
	o.what = fmt.Sprintf(format, args...)
	leak.Add(leak.Handles, 1)
}

// beginCall starts a use of the native object. The caller must call endCall afterwards. It returns
// ErrClosed for a closed object.
func (o *object) beginCall() error {
	o.life.RLock()
	if o.closed {
		o.life.RUnlock()
		return fmt.Errorf("use %s: %w", o.what, errdefs.ErrClosed)
	}
	return nil
}

func (o *object) endCall() { o.life.RUnlock() }

// adopt adds a child to o. release removes it.
func (o *object) adopt() error {
	if err := o.beginCall(); err != nil {
		return err
	}
	defer o.endCall()
	o.children.Add(1)
	return nil
}

func (o *object) release() { o.children.Add(-1) }

// close closes o. If free, which frees the native object, returns an error, o stays open. Otherwise
// o is closed even if tidy returns an error. For a closed object, close returns nil.
func (o *object) close(free, tidy func() error) error {
	o.life.Lock()
	defer o.life.Unlock()
	if o.closed {
		return nil
	}
	if n := o.children.Load(); n > 0 {
		return fmt.Errorf("close %s: %d objects depend on it: %w", o.what, n, errdefs.ErrBusy)
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

// adoptAll adds a child to all parents or to none. A parent that occurs twice gets two children.
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

// check returns the error of a verb that failed with errno, or nil if errno is zero.
func check(errno syscall.Errno, call, format string, args ...any) error {
	if errno == 0 {
		return nil
	}
	return rdma.NewError(call, fmt.Sprintf(format, args...), errno, "")
}
