// Package signal lets streams of the host program wait for loads, or for single layers of a load.
//
// A Pool holds words of pinned memory, allocated in advance. A Signal owns one word during a load
// and counts the steps of the load. A word only counts up: each signal starts at the value at which
// the previous signal of that word ended. Streams wait until the word reaches a value. If a stream
// reaches its wait late, when the word belongs to another signal, the wait is already satisfied. No
// signal satisfies a wait for a later signal.
//
// The loader calls Advance for steps that have arrived and are verified, and Set at the end, with
// or without an error. Therefore no stream keeps waiting if a load fails or is canceled, or if the
// pool is closed. A stream cannot receive an error, so the program must check the Verdict before it
// uses the bytes of the steps.
//
// # Concurrency
//
// All methods are safe for concurrent use. Pool.Take and Pool.Close wait until their context ends.
// Signal.Block calls the driver, which blocks if the stream is full. It then holds no lock that
// Advance, Set or Verdict need. After Take, nothing is allocated on the device (see
// device.StreamAdopter).
package signal
