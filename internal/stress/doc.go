// Package stress is a test that stresses all parts at the same time. Several processes share
// directories of blocks. Each has 32 goroutines that load, dump, look up, lease, prefetch, remove
// and cancel on simulated devices. Faults are injected into streams, memory and files. Engines are
// closed and opened again, processes are killed, and files are damaged. Malicious peers connect to
// a transfer server.
//
//	go test ./internal/stress -run Stress -v -stress 60s [-seed 1]
//
// Invariants: data is correct, no durable block is lost, no removed block is found, no resource
// leaks, and no wait exceeds its limit. TestStress starts and disturbs the processes and checks the
// directories. Each process runs TestWorker of this test binary and writes durable blocks, counters
// and errors to its standard output.
package stress
