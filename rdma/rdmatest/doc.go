// Package rdmatest is the conformance suite of rdma.Provider. It uses two connected queue pairs, of
// one device or of two, and a queue pair that is connected to itself.
//
// If the verbs leave a behavior open, the tests accept all behaviors that the verbs permit.
package rdmatest
