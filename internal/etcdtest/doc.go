// Package etcdtest starts etcd servers for tests: etcd 3.4 of Debian and 3.6 of module tools/etcd.
// A proxy in front of one cuts its connections.
package etcdtest
