// Package s3test starts servers with the protocol of S3 for tests: versitygw, whose objects are
// files, and moto's, in memory. A proxy in front of them delays, refuses, truncates and changes
// responses. "make object" installs the servers and runs the tests. Elsewhere the tests are
// skipped.
package s3test
