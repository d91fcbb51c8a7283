// Package rdmatest is the conformance suite of rdma.Provider for implementations in hardware and
// software. It runs between two queue pairs of one device or of two, and over a queue pair that is
// connected to itself.
//
// It requires nothing that the verbs leave open: where providers may differ, a test accepts
// everything that the verbs permit.
package rdmatest
