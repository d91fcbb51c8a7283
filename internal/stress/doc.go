// Package stress is a program that strains everything at once, as a test: processes that share
// directories of blocks, each with 32 goroutines that load, dump, look up, lease, prefetch and
// cancel on simulated devices whose streams, memory and files fail, while engines are closed and
// opened again, processes killed, and files damaged under them. Beside them a transfer server has
// hostile peers.
//
//	go test ./internal/stress -run Stress -v -stress 60s [-seed 1]
//
// What must hold: no wrong byte, nothing durable lost, nothing left behind, no wait beyond its bound. TestStress starts the
// processes, harms them, and looks at the directories; each process is this test's binary again, in TestWorker, and tells by
// lines on its standard output what has become durable, what it has counted, and what it found wrong.
package stress
