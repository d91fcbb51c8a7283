// Package present formats reports: first the verdict, then tables, then a legend of terms. A Page
// collects the parts of a report and writes it to a Screen.
//
// Lines are limited to the width of the terminal, or to COLUMNS. Text is wrapped between words. A
// table that is too wide is split, and the parts are printed one below the other with the first
// columns repeated. Long words such as paths are never split. If the output is not a terminal and
// COLUMNS is not set, lines are not limited. Colors are used on terminals only, and NO_COLOR
// disables them.
//
// A Page is not safe for concurrent use.
package present
