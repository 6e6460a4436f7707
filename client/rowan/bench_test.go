package rowan_test

import (
	"fmt"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rowan/kv"
)

// BenchmarkCall is a GET and a PUT of 100 bytes by one client.
func BenchmarkCall(b *testing.B) {
	for name, in := range map[string]func(kv.Options) (*place, error){"mem": inMem, "tcp": overTCP} {
		b.Run(name, func(b *testing.B) {
			c := newReal(b, large(kv.Rowan), in)
			s, _, end := c.client()
			defer end()
			value := make([]byte, 100)
			keys := make([][]byte, 100)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "key-%d", i)
				if err := s.Insert(keys[i], value); err != nil {
					b.Fatal(err)
				}
			}
			for name, call := range map[string]func(s client.Store, key []byte) error{
				"get": func(s client.Store, key []byte) error { _, err := s.Get(key); return err },
				"put": func(s client.Store, key []byte) error { return s.Update(key, value) },
			} {
				b.Run(name, func(b *testing.B) {
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						if err := call(s, keys[i%len(keys)]); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}
