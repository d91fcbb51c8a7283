// Package sockets has the baseline of protocols over TCP: a client and a server that pipeline
// frames of fixed bytes without parsing them. Neither side allocates memory per request.
package sockets
