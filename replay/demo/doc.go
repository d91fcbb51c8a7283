// Package demo shows the main job end to end, and proves what it says: it replays the first requests of a real trace,
// restarts the store on the same directory and finds every block still there, then damages one file and shows that
// this is found, that no wrong byte reaches the device, and that the block is stored anew.
//
// The trace is the conversation trace of the Mooncake FAST'25 release (Apache-2.0), its first 400 requests. Run is for
// one goroutine; it returns when all it started has ended.
package demo
