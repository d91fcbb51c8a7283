// Package autonic lets tests use software NICs with kvlane.GDRAuto, and between block servers and
// engines of one process. Configurations do not support this, because software NICs are slower than
// copies without a NIC, and reach no other process. The choice is stored in the context of
// kvlane.Open or of the command.
package autonic

import (
	"context"

	"github.com/kvlane/kvlane/rdma"
)

type (
	softKey     struct{}
	providerKey struct{}
)

// WithSoft returns a context with which kvlane.GDRAuto also uses software NICs.
func WithSoft(ctx context.Context) context.Context { return context.WithValue(ctx, softKey{}, true) }

// Soft reports whether ctx was derived from a WithSoft context.
func Soft(ctx context.Context) bool { return ctx.Value(softKey{}) != nil }

// WithProvider returns a context with which block servers and their clients use the NICs of p.
func WithProvider(ctx context.Context, p rdma.Provider) context.Context {
	return context.WithValue(ctx, providerKey{}, p)
}

// Provider returns the provider of WithProvider, or nil.
func Provider(ctx context.Context) rdma.Provider {
	p, _ := ctx.Value(providerKey{}).(rdma.Provider) // nil without WithProvider
	return p
}
