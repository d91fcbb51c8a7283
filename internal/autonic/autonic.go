// Package autonic lets tests use software NICs under kvlane.GDRAuto. No configuration can: software
// NICs are slower than copies without a NIC. The context of kvlane.Open carries the choice.
package autonic

import "context"

type softKey struct{}

// WithSoft returns a context under which kvlane.GDRAuto uses software NICs too.
func WithSoft(ctx context.Context) context.Context { return context.WithValue(ctx, softKey{}, true) }

// Soft reports whether ctx was derived from a context of WithSoft.
func Soft(ctx context.Context) bool { return ctx.Value(softKey{}) != nil }
