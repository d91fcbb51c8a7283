// Package target holds what the project says its copies reach on an H100, figure by figure, and judges a report of package
// bench by it: what was measured, what was to be reached, and whether it was.
//
// A figure that a report does not hold is not measured, which is neither met nor missed. A report of another GPU is judged
// by the same figures, those of a simulated device mean nothing; Judgment says of what it is.
package target
