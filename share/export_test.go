package share

import "github.com/kvlane/kvlane/device"

// Copies that are waited for.
var (
	Through = through
	Moved   = moved
)

// EncodeRequest returns what an importer sends.
func EncodeRequest(id Identity) []byte { return encodeRequest(id, forMemory) }

// EncodeEnd returns what an importer says last.
func EncodeEnd(id Identity) []byte { return encodeRequest(id, forEnd) }

// EncodeReply returns what a server answers.
func EncodeReply(h device.Handle, length int64) []byte {
	return (&reply{status: statusOK, handle: h, length: length}).encode()
}
