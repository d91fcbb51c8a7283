package dirfs

import "context"

type contextKey struct{}

// With returns a context with a file system that an engine uses instead of the operating system's.
// Tests use it to inject faults into a whole engine.
func With(ctx context.Context, fs FS) context.Context {
	return context.WithValue(ctx, contextKey{}, fs)
}

// Of returns the file system that With gave ctx, or nil.
func Of(ctx context.Context) FS {
	fs, _ := ctx.Value(contextKey{}).(FS)
	return fs
}
