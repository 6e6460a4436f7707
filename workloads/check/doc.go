// Package check reports whether what a store answered can be right. Workers record their operations
// with the times of call and return (Recorder); Linearizable then looks, key by key, for one order
// of the operations that respects those times and explains every answer, ErrNotFound and ErrExists
// included. When there is none, the error shows the smallest part of the history that it could
// narrow the contradiction down to.
//
// The search is porcupine's (the algorithm of Wing and Gong with Lowe's memory); the model is a
// register per key that is absent or holds one value.
package check
