package rpc

// Decompress is decompress, for tests.
var Decompress = decompress
