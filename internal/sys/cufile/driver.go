package cufile

import (
	"errors"
	"fmt"
	"sync"
)

// Driver is the library's driver. There is one for each process. The first user opens it and the
// last one closes it. A failed open is not retried: a second attempt would return success, but the
// driver would not work. It is safe for concurrent use.
type Driver struct {
	load func() (*API, error)

	mu      sync.Mutex
	api     *API
	failed  error
	users   int
	foreign bool // another part of the process has opened the driver and will close it
}

// NewDriver returns the driver of the library. load is called on first use.
func NewDriver(load func() (*API, error)) *Driver { return &Driver{load: load} }

// Open opens the library and its driver. The driver stays open until Close. The error wraps
// ErrNotSupported if the library is not installed. If opening the driver fails, all later calls
// return the same error. It blocks while the driver starts. It needs a context.
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

// Close undoes one Open. It blocks while the driver stops. It needs a context.
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
