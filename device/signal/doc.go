// Package signal lets streams of the host program wait for loads, or for one layer after another of them.
//
// A Pool is words of pinned memory, made ahead. A Signal has one of them for as long as a load takes, and counts its steps:
// a word only ever counts up, each signal goes on where the one before it on that word ended, and streams wait until it has
// come far enough. So a stream that has not come to its wait yet when the word has another signal finds it satisfied, and no
// signal satisfies a wait for a later one.
//
// Whoever loads calls Advance for what has come and is verified, and Set at the end, whatever became of it: no stream is left
// waiting by a load that fails or is cancelled, nor by a pool that is closed. A stream cannot be told that bytes are missing,
// so the program reads the Verdict before it uses what the steps brought.
//
// # Concurrency
//
// All methods are safe for concurrent use. Pool.Take and Pool.Close wait, as long as their context says; Signal.Hold calls the
// driver, which blocks where the stream is full. No lock that Advance, Set or Verdict need is held meanwhile. From Take on,
// nothing is allocated on the device (see device.StreamAdopter).
package signal
