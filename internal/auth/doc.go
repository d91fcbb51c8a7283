// Package auth has the credentials of servers and clients of kvlane's network protocols.
//
// A server has a certificate, and identifies clients by their certificates (mutual TLS), by tokens,
// or by both. The credential determines the tenant of a client: it is the common name of the
// certificate, or the tenant of the token. If a client has both, they must have the same tenant.
// Tokens are sent over TLS only.
//
// A server without client credentials listens on loopback addresses only, unless
// ServerOptions.Insecure is set. All its clients belong to one tenant.
//
// Credentials are read from files when a Server or a Client is made. A new file of tokens of a
// server takes effect within a second; other files take effect with a restart. All types are safe
// for concurrent use.
package auth
