package kvlane

import (
	"context"

	"github.com/kvlane/kvlane/mem"
)

// What tests of planning need: the profile that an engine with the options plans with, and what it is stored under.
var (
	Profile    = (*StreamConfig).profile
	ProfileKey = profileKey
)

// AdmitSoft has NICs in software treated as others: GDRAuto takes them, they are given dma-bufs, and are flushed after.
func AdmitSoft(c *Config) { c.RDMA.softAsHardware = true }

// FailRegister has n register no more memory.
func (n *NICs) FailRegister(err error) { n.stack = deafNICs{n.stack, err} }

// deafNICs are NICs that memory cannot be registered with.
type deafNICs struct {
	nicStack
	err error
}

func (d deafNICs) register(...*mem.Region) error { return d.err }

// HoldClose has e closed by f first.
func HoldClose(e *Engine, f func(context.Context) error) { e.closers.add("held", f) }
