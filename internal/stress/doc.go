// Package stress is a test program that loads all parts at once. Processes share directories of
// blocks. Each has 32 goroutines that load, dump, look up, lease, prefetch and cancel on simulated
// devices whose streams, memory and files fail. Engines are closed and opened again, processes are
// killed, and files are damaged. A transfer server has hostile peers.
//
//	go test ./internal/stress -run Stress -v -stress 60s [-seed 1]
//
// Invariants: no wrong byte, nothing durable is lost, nothing leaks, and no wait exceeds its bound.
// TestStress starts the processes, disturbs them, and checks the directories. Each process runs
// TestWorker of this test binary. On its standard output it reports durable blocks, counters, and
// errors.
package stress
