package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
)

// eventSet combines several events into one.
type eventSet []device.Event

var _ device.ExpectedEvent = eventSet(nil)

// record records an event on q and appends it to j.
func (j *eventSet) record(q device.Queue) (device.Event, error) {
	e, err := q.Record()
	if err != nil {
		return nil, fmt.Errorf("record event: %w", err)
	}
	*j = append(*j, e)
	return e, nil
}

// Done implements device.Event. It returns true once all events are done. If the state of an event
// cannot be determined, it returns false and that event's error.
func (j eventSet) Done() (bool, error) {
	var errs []error
	pending := false
	for _, e := range j {
		done, err := e.Done()
		switch {
		case err != nil && !done:
			return false, err
		case err != nil:
			errs = append(errs, err)
		case !done:
			pending = true
		}
	}
	if pending {
		return false, nil
	}
	return true, errors.Join(errs...)
}

// Expect implements device.ExpectedEvent.
func (j eventSet) Expect(at time.Time) {
	for _, e := range j {
		if e, ok := e.(device.ExpectedEvent); ok {
			e.Expect(at)
		}
	}
}

// Wait implements device.Event. It waits for all events, even if one fails.
func (j eventSet) Wait(ctx context.Context) error {
	var errs []error
	for _, e := range j {
		errs = append(errs, e.Wait(ctx))
	}
	return errors.Join(errs...)
}

// Close implements device.Event.
func (j eventSet) Close() {
	for _, e := range j {
		e.Close()
	}
}
