// Package server is the Rowan-KV server beside one memory node (OSDI 2023, sections 4 and 5):
//
//	s, err := server.Open(ep, configs, o, node)
//	err = s.Run(ep) // until s.Stop
//
// It opens what the tasks share (package state) and starts them: control (package failover),
// workers, cleaners, and the exchanger. Package client/rowan is the client.
package server
