package file

import (
	"context"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// VerifyOn is Verify on a given file system.
func VerifyOn(ctx context.Context, fsys dirfs.FS, dir string) (Report, error) {
	return verify(ctx, fsys, dir, nil)
}

// OnHost sets the host name of a tier, which then ignores locks of other hosts.
func OnHost(c Config, name string) Config {
	c.host = name
	return c
}

// Part returns the limits of a tier whose folder has own bytes and whose neighbours have others
// bytes.
func Part(c *Config, own, others int64, folders int) (most, high, low int64) {
	l := c.limitsOf(c.MaxBytes)
	l = l.part(own, others, folders, c.Formats.MaxImageBytes())
	return l.most, l.high, l.low
}

// RemoveOn is Remove on a given file system.
func RemoveOn(ctx context.Context, fsys dirfs.FS, dir string, sel Selection) (Removed, error) {
	return remove(ctx, fsys, dir, sel)
}

// PinOn is Pin on a given file system.
func PinOn(ctx context.Context, fsys dirfs.FS, dir string, sel Selection, boundBytes int64) (Pinned, error) {
	return pin(ctx, fsys, dir, sel, boundBytes)
}

// UnpinOn is Unpin on a given file system.
func UnpinOn(ctx context.Context, fsys dirfs.FS, dir string, sel Selection) (Pinned, error) {
	return unpin(ctx, fsys, dir, sel)
}
