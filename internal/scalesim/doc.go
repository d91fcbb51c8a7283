// Package scalesim simulates many block servers and their clients, to check what placement, hot
// runs, breakers and the ramp of new servers do at a size that no test has.
//
// It is a discrete-event simulation. The decisions are those of the real packages: placement,
// hotrun and breaker. Servers, networks and the popularity of runs are modeled: a server carries
// out one request at a time, and a request is for a whole run. All randomness follows from the
// seed, so equal configurations have equal reports.
package scalesim
