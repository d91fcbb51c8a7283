// Package acceptance has end-to-end tests of engines of package kvlane: loads, dumps and transfers
// on simulated, host and real devices, with software and real NICs, and between processes.
package acceptance
