// Command libkvlane is the C library: kvlane within the process of a program in another language.
// `make lib` builds bin/lib/libkvlane.so and its header, kvlane.h. It is the only package with cgo,
// and only converts arguments and results. Package internal/capi implements the functions. kvlane.c
// has the code that must work without Go's runtime, for example in a child of fork().
//
// Without cgo it builds as a program that does nothing, so that `go build ./...` needs no C
// compiler.
package main

func main() {}
