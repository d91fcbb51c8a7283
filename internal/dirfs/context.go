package dirfs

import "context"

type contextKey struct{}

// With returns a context with which an engine opens its files on fs, in place of the operating system's. It is how tests of what is
// wired above the tiers have files that fail: no configuration names one.
func With(ctx context.Context, fs FS) context.Context {
	return context.WithValue(ctx, contextKey{}, fs)
}

// Of returns the file system that With gave ctx, or nil.
func Of(ctx context.Context) FS {
	fs, _ := ctx.Value(contextKey{}).(FS)
	return fs
}
