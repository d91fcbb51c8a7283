package dirfs

import "context"

type contextKey struct{}

// With returns a context with the file system for an engine to use. Tests use it to inject faults
// into a whole engine.
func With(ctx context.Context, fs FS) context.Context {
	return context.WithValue(ctx, contextKey{}, fs)
}

// Of returns the file system from With, or nil.
func Of(ctx context.Context) FS {
	fs, _ := ctx.Value(contextKey{}).(FS)
	return fs
}
