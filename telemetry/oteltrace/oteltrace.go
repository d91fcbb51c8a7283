// Package oteltrace makes OpenTelemetry spans of a store's operations:
//
//	config.Store.Tracer = oteltrace.New(otel.GetTracerProvider())
//
// Spans are kvlane.lookup, kvlane.lease, kvlane.load, kvlane.dump and kvlane.prefetch, below the
// span of the caller's context, and below those kvlane.get and kvlane.put for each access to a tier
// below the cache. A load's, dump's or prefetch's span ends when its task does. Attributes are
// kvlane.blocks, and kvlane.tier for accesses. A span with an error has its text as status. The
// program brings the provider and its exporter.
package oteltrace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvlane/kvlane/store"
)

type tracer struct{ trace.Tracer }

// New returns a Tracer whose spans the provider makes.
func New(provider trace.TracerProvider) store.Tracer {
	return tracer{provider.Tracer("github.com/kvlane/kvlane")}
}

// Start implements store.Tracer.
func (t tracer) Start(ctx context.Context, s store.Span) (_ context.Context, end func(error)) {
	attributes := []attribute.KeyValue{attribute.Int("kvlane.blocks", s.Blocks)}
	if s.Tier != "" {
		attributes = append(attributes, attribute.String("kvlane.tier", s.Tier))
	}
	ctx, span := t.Tracer.Start(ctx, "kvlane."+s.Operation, trace.WithAttributes(attributes...))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
