package cuda

import "fmt"

// Do calls f with the device's context current on the calling thread, so that other CUDA libraries
// can use this device's memory and streams. f must not change the current context and must not
// block. Do returns f's error, or the reason why the context cannot be used. It is safe for
// concurrent use.
func (d *Device) Do(f func() error) error {
	if err := d.begin(); err != nil {
		return fmt.Errorf("use context: %w", err)
	}
	defer d.end()
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return fmt.Errorf("use context: %w", err)
	}
	defer d.popContextRelaxed(mode)
	return f()
}
