// Package streamtest is the conformance suite of stream.Stream: whatever copies batches, over hardware or decorating
// another Stream, passes it.
//
// A test package gives Run an Env: how to open the stream, and two memories to copy between. The suite keeps a model of
// every region it uses and compares all of it, so that a byte too many is found as a byte too few is. Where the Env has a
// fault plan, the suite also breaks and stalls the work of the device below; hardware that cannot be told to fail runs the
// rest.
package streamtest
