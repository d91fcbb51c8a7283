// Package archtest holds the tests of the source: the import graph, the use of unsafe, the length
// of files, functions and interfaces, the language of comments and pages, and the conformance
// suites that implementations run. It has no code of its own.
package archtest
