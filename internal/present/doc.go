// Package present prints reports for people in one layout: the verdict, then tables, then a legend
// of terms. A Page collects a report for a Screen and writes it at once.
//
// Lines fit the width of the terminal, or COLUMNS. Text breaks between words, and a table that is
// too wide continues below with its first columns repeated. A single longer word, such as a path,
// is never broken. Without a terminal lines are unbounded unless COLUMNS is set, so that programs
// get complete lines. Colors are for terminals, and disabled by NO_COLOR.
//
// A Page is for one goroutine.
package present
