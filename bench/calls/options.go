package calls

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc"
)

// Options configure a run. Zero values are the defaults.
type Options struct {
	// Address is the server to measure. Default: a server in this process, which is compared with
	// bare sockets.
	Address string
	// Client are the options of the client.
	Client rpc.ClientOptions

	Callers     []int         // calls in progress; default 8 and 32
	Bodies      []int64       // bytes of a request's message; default 4 KiB without Attachments
	Attachments []int64       // bytes of an attachment, each with an empty message; default none
	Rounds      int           // default 5
	Duration    time.Duration // duration of a subject in each round; default 500 ms
	// Timeout limits the time of calls after the end of a round's duration. Default: 10 s.
	Timeout time.Duration
	// Extra are more subjects.
	Extra []Opener
	// Progress is called before each measurement and after the last one. Optional.
	Progress func(done, total int, what string)
}

// Load is the work of a point. Body and Attachment are lengths in bytes.
type Load struct {
	Callers          int
	Body, Attachment int64
}

// Opener connects a subject for a point. It returns nil for a load that the subject does not
// support.
type Opener func(ctx context.Context, l Load) (Subject, error)

// Subject is a connected subject. Close releases its resources.
type Subject interface {
	rounds.Subject
	Close() error
}

// Limits of Options.
const (
	maxCallers = 1024
	maxRounds  = 1000
	maxBytes   = 1 << 30 // of the requests in progress
	// headBytes bounds the rest of a request, which the limit of a body includes.
	headBytes = 64 << 10
)

// SetDefaults replaces zero values with defaults.
func (o *Options) SetDefaults() {
	if len(o.Callers) == 0 {
		o.Callers = []int{8, 32}
	}
	if len(o.Bodies)+len(o.Attachments) == 0 {
		o.Bodies = []int64{4 << 10}
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Duration == 0 {
		o.Duration = 500 * time.Millisecond
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
}

// Validate reports all errors.
func (o *Options) Validate() error {
	var errs []error
	fail := func(format string, args ...any) {
		err := fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalid)
		if n := len(errs); n == 0 || errs[n-1].Error() != err.Error() { // another load may have the same size
			errs = append(errs, err)
		}
	}
	for _, n := range o.Callers {
		if n < 1 || n > maxCallers {
			fail("%d callers: must be 1 to %d", n, maxCallers)
		}
	}
	for _, l := range o.loads() {
		if n := l.Body + l.Attachment; l.Body < 0 || l.Attachment < 0 || n == 0 || n > rpc.DefaultMaxBodyBytes-headBytes {
			fail("calls of %d bytes: must be 1 to %d", n, rpc.DefaultMaxBodyBytes-headBytes)
		} else if n*int64(l.Callers) > maxBytes {
			fail("%d calls of %d bytes: must be at most %d bytes in all", l.Callers, n, int64(maxBytes))
		}
	}
	if o.Rounds < 1 || o.Rounds > maxRounds || o.Duration < 0 || o.Timeout < 0 {
		fail("%d rounds of %v, calls of at most %v: must be 1 to %d rounds, and positive times", o.Rounds, o.Duration, o.Timeout, maxRounds)
	}
	return errors.Join(errs...)
}

// loads returns the loads of the points.
func (o *Options) loads() []Load {
	var all []Load
	for _, n := range o.Bodies {
		for _, callers := range o.Callers {
			all = append(all, Load{callers, n, 0})
		}
	}
	for _, n := range o.Attachments {
		for _, callers := range o.Callers {
			all = append(all, Load{callers, 0, n})
		}
	}
	return all
}
