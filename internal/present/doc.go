// Package present prints reports for people, all in one way: the verdict first, then tables, and at the end the legend of the words that
// were used. A Page gathers a report for a Screen and is written at once.
//
// Lines keep to the width of the terminal, or to COLUMNS: text breaks between words, and a table that is too wide is continued below with
// its first columns again. A single word that is longer, such as a path, is never broken. What is not written to a terminal has no bounds
// unless COLUMNS is set, so that programs find every line whole. Colors are for terminals, and never where NO_COLOR is set.
//
// A Page is for one goroutine.
package present
