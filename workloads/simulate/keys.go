package simulate

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/farkv/farkv/client"
)

// ShortKeyBytes is what keys take with Config.ShortKeys.
const ShortKeyBytes = 4

// shortKeys is a store whose keys are the numbers that the workload writes in decimal, in ShortKeyBytes: as the records of
// RCuckoo's evaluation (section 5.3).
type shortKeys struct {
	client.Store
	key [ShortKeyBytes]byte
}

func (s *shortKeys) number(key []byte) ([]byte, error) {
	n, err := strconv.ParseUint(string(key), 10, 8*ShortKeyBytes)
	if err != nil {
		return nil, fmt.Errorf("key %q is no number of %d bytes: %w", key, ShortKeyBytes, client.ErrTooLarge)
	}
	binary.LittleEndian.PutUint32(s.key[:], uint32(n))
	return s.key[:], nil
}

// Get implements client.Store.
func (s *shortKeys) Get(key []byte) ([]byte, error) {
	k, err := s.number(key)
	if err != nil {
		return nil, err
	}
	return s.Store.Get(k)
}

// Insert implements client.Store.
func (s *shortKeys) Insert(key, value []byte) error {
	k, err := s.number(key)
	if err != nil {
		return err
	}
	return s.Store.Insert(k, value)
}

// Update implements client.Store.
func (s *shortKeys) Update(key, value []byte) error {
	k, err := s.number(key)
	if err != nil {
		return err
	}
	return s.Store.Update(k, value)
}

// Delete implements client.Store.
func (s *shortKeys) Delete(key []byte) error {
	k, err := s.number(key)
	if err != nil {
		return err
	}
	return s.Store.Delete(k)
}
