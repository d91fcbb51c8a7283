package file

import (
	"context"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// VerifyOn is Verify on another file system than the operating system's.
func VerifyOn(ctx context.Context, fsys dirfs.FS, dir string) (Report, error) {
	return verify(ctx, fsys, dir, nil)
}

// OnHost makes a tier take itself for one of another host, whose file locks this one does not see.
func OnHost(c Config, name string) Config {
	c.host = name
	return c
}

// Part returns the bounds of folders that hold own bytes of a bound, where others hold so many.
func Part(c *Config, own, others int64, folders int) (most, high, low int64) {
	l := c.limitsOf(c.MaxBytes)
	l = l.part(own, others, folders, c.Formats.MaxImageBytes())
	return l.most, l.high, l.low
}
