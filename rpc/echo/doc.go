// Package echo has the messages of example.EchoService, generated from echo.proto. brpc's examples
// use this service too.
package echo
