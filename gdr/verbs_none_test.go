//go:build nonic

package gdr_test

const hasVerbs = false
