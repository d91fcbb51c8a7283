package device

import "context"

// EventSharer is a Device whose work queues of other processes wait for, on the device, and whose queues wait for theirs.
type EventSharer interface {
	Device
	// NewSharedEvent makes an event for other processes, which stands for nothing yet: whoever waits for it does not wait.
	NewSharedEvent() (SharedEvent, error)
	// OpenSharedEvent opens another process's. h stays the caller's.
	OpenSharedEvent(h Handle) (SharedEvent, error)
}

// SharedEvent stands for work of the process that made it: the last that it was told to follow. Whoever opened it learns by other means
// that it has been. Safe for concurrent use, but for Close.
type SharedEvent interface {
	// Handle is what others open it by. Its FD is the caller's, and it has no memory. ErrInvalid for an event of another process.
	Handle() (Handle, error)
	// Follow has the event stand for what e does, of a queue or a HostStream, as soon as it returns. e may be closed then. ErrInvalid for
	// an event of another process.
	Follow(e Event) error
	// Event returns an event that is done when the work is that the shared one stands for now, or later work. It is closed before the
	// shared one, here and at the process that made it: its Close calls closed last, which may be nil and does not block.
	Event(closed func()) (Event, error)
	// Close waits for the work, and gives the event back, which those who opened it must not use any more. If ctx ends first it may be
	// called again. A second Close after success returns nil.
	Close(ctx context.Context) error
}
