//go:build !nonic

package gdr_test

// hasVerbs reports whether this build can load libibverbs.
const hasVerbs = true
