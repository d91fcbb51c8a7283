// Package autonic lets tests use software NICs with kvlane.GDRAuto. Configurations do not support
// this, because software NICs are slower than copies without a NIC. The choice is stored in the
// context of kvlane.Open.
package autonic

import "context"

type softKey struct{}

// WithSoft returns a context with which kvlane.GDRAuto also uses software NICs.
func WithSoft(ctx context.Context) context.Context { return context.WithValue(ctx, softKey{}, true) }

// Soft reports whether ctx was derived from a WithSoft context.
func Soft(ctx context.Context) bool { return ctx.Value(softKey{}) != nil }
