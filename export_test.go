package kvlane

import "context"

// OpenSoftUnderAuto is Open, but that GDRAuto takes NICs in software too.
func OpenSoftUnderAuto(ctx context.Context, c Config) (*Engine, error) { return open(ctx, c, true) }

// HoldClose has e closed by f first.
func HoldClose(e *Engine, f func(context.Context) error) { e.closers.Add("held", f) }
