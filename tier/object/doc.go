// Package object is the tier of blocks in an object store with the protocol of S3.
//
// Each block is an object. Its name is PREFIX/v1/FOLDER/ANCHOR/PART/KEY. FOLDER is of the identity,
// ANCHOR of the run (tier.Anchors), and PART of eight blocks of the run. All blocks of a run have
// one prefix, so a lookup is one list request for each run. If a run has more objects than a
// response, because many prompts branch in it, the lookup lists the parts. The folder has a marker,
// kvlane.json.
//
// Objects are images with header and checksums, as in files. Objects are written once, on condition
// that they do not exist. An object that a read has found damaged is a miss until it is replaced,
// on condition that it is still the same one.
//
// Each operation has a deadline, which covers its requests and their retries. Reads and writes have
// a breaker each (internal/breaker). A server that is slow or gone makes misses, not errors.
package object
