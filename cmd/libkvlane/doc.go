// Command libkvlane is the C library: kvlane within the process of a program in another language. `make lib` builds it as
// bin/lib/libkvlane.so, with its header, kvlane.h. It is the only place with cgo, and only converts: what the library does is
// package internal/capi, and what must work without Go's runtime, as in a child of fork(), is kvlane.c.
//
// Without cgo this builds as a program that does nothing, so that `go build ./...` needs no C compiler.
package main

func main() {}
