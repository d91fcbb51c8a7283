// Command libkvlane is the C library, for programs in other languages. `make lib` builds
// bin/lib/libkvlane.so and its header, kvlane.h. It is the only package that uses cgo, and it only
// converts arguments and results; package internal/capi implements the functions. kvlane.c contains
// code that must work without the Go runtime, for example in a child of fork().
//
// Without cgo it builds as a program that does nothing, so that `go build ./...` needs no C
// compiler.
package main

func main() {}
