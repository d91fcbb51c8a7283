// Package auth has the credentials of servers and clients of kvlane's network protocols.
//
// A server has a certificate, and identifies clients by their certificates (mutual TLS), by tokens,
// or by both. The tenant of a client follows from its credential: the common name of its
// certificate, or the tenant of its token. A client never names its tenant. With both, they must
// agree. Tokens are sent over TLS only.
//
// A server without credentials listens on loopback addresses only, unless the operator accepts that
// each host that reaches the address has access. All its clients are one tenant.
//
// Credentials are read from files when a Server or a Client is made; a new file takes effect with a
// restart. All types are safe for concurrent use.
package auth
