package device

import "fmt"

// Error is a failure that a driver has reported.
type Error struct {
	Call string // the native function: "cuMemAlloc_v2"
	Args string // relevant arguments: "bytes=4096"
	Code int    // native code: 2
	Name string // name of the code: "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // message of the driver; may be empty
	Kind error  // a sentinel of errdefs, or nil
}

// Error returns call, arguments, name, code and the driver's message.
func (e *Error) Error() string {
	s := fmt.Sprintf("%s(%s): %s (%d)", e.Call, e.Args, e.Name, e.Code)
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Kind }
