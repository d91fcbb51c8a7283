//go:build nonic

package rail

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

var errNoCode = fmt.Errorf("this build has no code for NICs (build tag nonic): %w", errdefs.ErrNotSupported)

// NICs are none in a build with the tag nonic.
type NICs struct{}

// Names returns none.
func (*NICs) Names() []string { return nil }

// ConnectRetries is none.
func (*NICs) ConnectRetries() int64 { return 0 }

// Serve is ErrNotSupported.
func (*NICs) Serve() (*Domain, error) { return nil, errNoCode }

// Use is ErrNotSupported.
func (*NICs) Use() (*Domain, error) { return nil, errNoCode }

// Domain is none.
type Domain struct{}

// Register is ErrNotSupported.
func (*Domain) Register(*mem.Region, int64) ([]Key, error) { return nil, errNoCode }

// Reason is none.
func Reason(error) string { return "" }

// Unregister has nothing to take back.
func (*Domain) Unregister(context.Context, *mem.Region) error { return nil }

// Open is ErrNotSupported.
func (*Domain) Open(int) (*Queue, error) { return nil, errNoCode }

// Leave has nothing to close.
func (*Domain) Leave(*Queue) {}

// Left is none.
func (*Domain) Left() int { return 0 }

// Hold is ErrNotSupported.
func (*Domain) Hold(int, []mem.Extent) (*Held, error) { return nil, errNoCode }

// Close has nothing to close.
func (*Domain) Close() error { return nil }

// Held is nothing.
type Held struct{}

// Release has nothing to release.
func (*Held) Release() {}

// Queue is none.
type Queue struct{}

// Job is none.
type Job struct {
	Write  bool
	Held   *Held
	Local  []mem.Extent
	Key    Key
	Remote []Span
}

// Endpoint is that of no queue.
func (*Queue) Endpoint() Endpoint { return Endpoint{} }

// Connect is ErrNotSupported.
func (*Queue) Connect(Endpoint) error { return errNoCode }

// Send is ErrNotSupported.
func (*Queue) Send(context.Context, *Job) error { return errNoCode }

// Wait is ErrNotSupported.
func (*Queue) Wait(context.Context) (int, error) { return 0, errNoCode }

// Close has nothing to close.
func (*Queue) Close() error { return nil }
