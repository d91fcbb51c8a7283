package cuda

import "fmt"

// Do calls f with the device's context current on the calling thread, so that other libraries of CUDA can work on this
// device's memory and streams. f must leave the context as it found it and must not block. The error is f's, or says that
// the context cannot be used. Safe for concurrent use.
func (d *Device) Do(f func() error) error {
	if err := d.begin(); err != nil {
		return fmt.Errorf("use context: %w", err)
	}
	defer d.end()
	mode, err := d.enterRelaxed()
	if err != nil {
		return fmt.Errorf("use context: %w", err)
	}
	defer d.leaveRelaxed(mode)
	return f()
}
