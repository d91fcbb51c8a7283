// Package blockdir is what every directory of blocks has, however a tier keeps the blocks in it: a marker that says whose they are, a
// lock, a quarantine for what failed its check, and the words in which it is reported what is in a directory and what is wrong there.
// Its functions are safe for concurrent use as far as package dirfs is.
package blockdir
