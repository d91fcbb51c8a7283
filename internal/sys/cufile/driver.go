package cufile

import (
	"errors"
	"fmt"
	"sync"
)

// Driver is the driver of the library, one per process. It is opened for the first user and closed
// after the last. A failed open is not repeated, because the library would then return success and
// not work. It is safe for concurrent use.
type Driver struct {
	load func() (*API, error)

	mu      sync.Mutex
	api     *API
	failed  error
	users   int
	foreign bool // another part of the process has opened it, and closes it
}

// NewDriver returns the driver of the library that load returns at the first use.
func NewDriver(load func() (*API, error)) *Driver { return &Driver{load: load} }

// Open returns the library, with its driver open until Close. The error wraps ErrNotSupported if
// there is no library. Every later call returns the error of a failed driver. It blocks while the
// driver starts. It needs a context.
func (d *Driver) Open() (*API, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed != nil {
		return nil, d.failed
	}
	if d.users == 0 {
		if err := d.open(); err != nil {
			d.failed = err
			return nil, err
		}
	}
	d.users++
	return d.api, nil
}

func (d *Driver) open() error {
	if d.api == nil {
		api, err := d.load()
		if err != nil {
			return err
		}
		d.api = api
	}
	r := d.api.DriverOpen()
	d.foreign = r.Status == DriverAlreadyOpen
	if d.foreign {
		return nil
	}
	return r.Err("cuFileDriverOpen", "")
}

// Close undoes one Open. It needs a context, and blocks while the driver stops.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == 0 {
		return errors.New("close the driver of libcufile: not open")
	}
	d.users--
	if d.users > 0 || d.foreign {
		return nil
	}
	if err := d.api.DriverClose().Err("cuFileDriverClose", ""); err != nil {
		// The state of the driver is unknown.
		d.failed = fmt.Errorf("an earlier close of the driver of libcufile failed: %w", err)
		return err
	}
	return nil
}
