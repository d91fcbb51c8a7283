// Package rdmatest is the conformance suite of rdma.Provider: what every implementation, in hardware or software, must do.
// It runs between two queue pairs of one device or of two, and over a queue pair that is connected to itself.
//
// It asks for nothing that the verbs leave open: where providers may differ, a test accepts what the verbs allow.
package rdmatest
