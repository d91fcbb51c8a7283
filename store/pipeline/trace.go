package pipeline

import "context"

// Tracer makes spans of the store's operations. Its methods may be called concurrently.
type Tracer interface {
	// Start begins the span of an operation, whose parent is in ctx, if there is one. The returned
	// context has the span. end is called once, with the operation's error.
	Start(ctx context.Context, s Span) (_ context.Context, end func(error))
}

// Span describes an operation.
type Span struct {
	Operation string // "lookup", "lease", "load", "dump", "prefetch", "get" or "put"
	Tier      string // of "get" and "put"
	Blocks    int
}

// StartSpan begins a span, if there is a Tracer.
func (p *Pipeline) StartSpan(ctx context.Context, s Span) (context.Context, func(error)) {
	if p.Tracer == nil {
		return ctx, func(error) {}
	}
	return p.Tracer.Start(ctx, s)
}

// withValues is a context with the values of another one.
type withValues struct {
	context.Context
	values context.Context
}

func (c withValues) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

// StartTaskSpan begins the span of a task, which runs in the context life and has its parent in ctx.
func (p *Pipeline) StartTaskSpan(ctx, life context.Context, s Span) (context.Context, func(error)) {
	if p.Tracer == nil {
		return life, nil
	}
	ctx, end := p.Tracer.Start(ctx, s)
	return withValues{life, ctx}, end
}
