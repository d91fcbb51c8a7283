// Package acceptance tests engines of package kvlane from end to end: loads, dumps and transfers on
// simulated, host and real devices, with software NICs and NICs of the machine, between processes.
package acceptance
