// Package soak puts load on the pool of any store, in real time, and judges what the store makes of
// it: that it never stops, never answers wrong, never says that a pool is full that is not, and
// leaves nothing behind.
package soak
