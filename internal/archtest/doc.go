// Package archtest holds the tests of the source: the import graph, the use of unsafe, the length
// of files, functions and interfaces, the language of comments and pages, and the conformance
// suites that implementations run. All its code is in test files.
package archtest
