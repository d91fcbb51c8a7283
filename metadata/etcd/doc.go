// Package etcd keeps the members of a group of servers in etcd. Servers register themselves
// (Register), and clients follow the list (Open). A Store keeps other small values.
//
// A member is a key PREFIX/NAME with a JSON value, where the prefix is /kvlane/CLUSTER/members. The
// key has a lease, so a member that is killed leaves after the lease's time. The epoch of a list is
// the etcd revision up to which it has all changes.
//
// While etcd cannot be reached, lists stay as they are and servers keep serving. The list is also
// read again at intervals, so a watch that is lost, compacted, or of an etcd that was restored
// from a backup delays changes by one interval at most.
//
// All types are safe for concurrent use.
package etcd
